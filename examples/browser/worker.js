// Loads the model, then answers one message after another.

import init, { Answerer, methods, takes_budget } from "./pkg/in_browser.js";

const MODEL = "../../models/ember-7m";

async function file(name) {
  const response = await fetch(`${MODEL}/${name}`);
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response;
}

async function load() {
  const [config, tokenizer, weights] = await Promise.all([
    file("config.json").then((it) => it.text()),
    file("tokenizer.json").then((it) => it.text()),
    file("model.safetensors").then((it) => it.arrayBuffer()),
    init(),
  ]);
  return new Answerer(config, tokenizer, new Uint8Array(weights));
}

const loaded = load();
// What went wrong is said to the page, which says it to the reader.
const say = (error) => postMessage({ error: String(error.message ?? error) });
loaded.then(() => postMessage({ methods: methods().map((name) => [name, takes_budget(name)]) }), say);

onmessage = async ({ data: [text, policy, budget, tokens] }) => {
  try {
    const answerer = await loaded;
    const answer = answerer.answer(text, policy, budget, tokens, (piece) => postMessage({ piece }));
    postMessage({
      text: answer.text,
      tokensPerSecond: answer.tokens_per_second,
      bytesHeld: answer.bytes_held,
      bytesFull: answer.bytes_full,
    });
    answer.free();
  } catch (error) {
    say(error);
  }
};
