'use strict';
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  document.documentElement.classList.add('js');

  // Sorting: numbers from large to small at first, text from A on. What was not measured stays at the end.
  const value = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.v;
    if (number !== undefined) return Number(number);
    const text = cell.textContent.trim();
    return text === '–' ? null : text;
  };
  const compare = (a, b) =>
    typeof a === 'number' && typeof b === 'number'
      ? a - b
      : String(a).localeCompare(String(b), 'en', { numeric: true });
  const sort = (table, head) => {
    const column = head.cellIndex;
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    const numbers = rows.some(([v]) => typeof v === 'number');
    const first = numbers && !head.textContent.includes('Budget') ? 'descending' : 'ascending';
    const other = first === 'ascending' ? 'descending' : 'ascending';
    const now = head.getAttribute('aria-sort') === first ? other : first;
    for (const one of head.parentNode.cells) one.setAttribute('aria-sort', 'none');
    head.setAttribute('aria-sort', now);
    const sign = now === 'ascending' ? 1 : -1;
    rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  };
  for (const table of all('table.sortable'))
    for (const head of table.tHead.rows[0].cells)
      head.querySelector('button')?.addEventListener('click', () => sort(table, head));

  // What is wider than its box says so.
  const hint = () => {
    for (const one of all('.hint')) {
      const { scrollWidth, clientWidth } = one.nextElementSibling;
      one.classList.toggle('wide', scrollWidth > clientWidth);
    }
  };
  addEventListener('resize', hint);

  // Filters. Parts of the page say what they are about; one that is about something unchecked is hidden.
  const filter = document.getElementById('filter');
  const samples = document.getElementById('sample-filter');
  const sampleRows = all('#sample-table tbody tr');
  const shown = (rows) => rows.filter((row) => !row.hidden).length;
  const showSamples = () => {
    if (!samples) return;
    const text = samples.elements.text.value.toLowerCase();
    const score = samples.elements.score.value;
    for (const row of sampleRows) {
      const right = Number(row.dataset.score) >= 1;
      row.hidden =
        row.dataset.out === '1' ||
        (score !== '' && (score === 'right') !== right) ||
        !row.textContent.toLowerCase().includes(text);
    }
    document.getElementById('sample-count').textContent = `${shown(sampleRows)} of ${sampleRows.length} answers`;
  };
  const apply = () => {
    if (!filter) return;
    const policy = filter.elements.policy.value.trim().toLowerCase();
    const off = {};
    for (const box of all('input[type=checkbox]', filter))
      if (!box.checked) (off[box.name] ??= new Set()).add(box.value);
    const out = ({ dataset }) => {
      if (dataset.policy !== undefined && !dataset.policy.toLowerCase().includes(policy)) return true;
      const method = dataset.method ?? dataset.policy?.split(':')[0];
      return (
        off.method?.has(method) || off.method?.has(dataset.other) || off.budget?.has(dataset.budget) || off.task?.has(dataset.task) || off.ask?.has(dataset.ask)
      );
    };
    for (const part of all('main [data-policy], main [data-budget], main [data-task], main [data-ask]')) {
      const hidden = Boolean(out(part));
      if (part.closest('#sample-table')) part.dataset.out = hidden ? '1' : '0';
      else if (part.tagName !== 'TH') part.toggleAttribute('hidden', hidden);
    }
    for (const table of all('table.numbers')) {
      const gone = [...table.tHead.rows[0].cells].map((head) => Boolean(out(head)));
      for (const row of table.rows) [...row.cells].forEach((cell, i) => (cell.hidden = gone[i]));
    }
    const rows = [...document.getElementById('table').tBodies[0].rows];
    document.getElementById('count').textContent = `${shown(rows)} of ${rows.length} rows`;
    showSamples();
    hint();
  };
  for (const form of [filter, samples]) form?.addEventListener('submit', (event) => event.preventDefault());
  filter?.addEventListener('input', apply);
  filter?.addEventListener('reset', () => setTimeout(apply));
  samples?.addEventListener('input', showSamples);
  apply();
  showSamples();
  hint();

  // Kept tokens: a policy's shares onto the text.
  for (const panel of all('.panel')) {
    const shares = JSON.parse(document.getElementById(`shares-${panel.dataset.text}`).textContent);
    const tokens = all('.tokens span', panel);
    const select = panel.querySelector('select');
    const said = panel.querySelector('output');
    const held = () => `${select.selectedOptions[0].dataset.held} % of all tokens in all heads held`;
    select.disabled = false;
    select.addEventListener('change', () => {
      const policy = shares[select.value];
      tokens.forEach((token, i) => (token.className = `k${Math.ceil(policy[i] / 10)}`));
      said.textContent = held();
    });
    panel.addEventListener('pointerover', ({ target }) => {
      const i = tokens.indexOf(target);
      said.textContent = i < 0 ? held() : `“${target.textContent}”: held by ${shares[select.value][i]} % of heads`;
    });
    panel.addEventListener('pointerleave', () => (said.textContent = held()));
  }

  // Everything is printed.
  addEventListener('beforeprint', () => all('details').forEach((one) => (one.open = true)));
})();
