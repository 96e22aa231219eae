// Asks the page in a browser, and its WebAssembly in node: the tokens under the full cache are those of `transformers`, the texts
// under each policy those of the host. `check.mjs HOST BROWSER`, as `.ci/browser` calls it.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";

import init, { Answerer } from "./pkg/in_browser.js";

const [host, browser] = process.argv.slice(2);
const root = fileURLToPath(new URL("../..", import.meta.url));
const { prompts } = JSON.parse(readFileSync(join(root, "tests/fixtures/ember_logits.json")));
const longest = prompts.reduce((one, other) => (other.tokens.length > one.tokens.length ? other : one));
/** Without the question at its end, which is answered in a few tokens. */
const story = longest.text.slice(0, longest.text.lastIndexOf("\nWhat"));
const CASES = [["full", ""], ["snapkv", "128"], ["h2o", "128"], ["ems", "128"]];
const TOKENS = 40;
/** The token at which an answer ends, and the fixture does not. */
const STOP = 1;

/** The texts that are expected of the page, each with what is asked. */
async function expected() {
  await init({ module_or_path: readFileSync(new URL("pkg/in_browser_bg.wasm", import.meta.url)) });
  const model = (name) => readFileSync(join(root, "models/ember-7m", name));
  const [config, tokenizer] = ["config.json", "tokenizer.json"].map((name) => model(name).toString());
  const answerer = new Answerer(config, tokenizer, model("model.safetensors"));
  const asked = prompts.map(({ text, argmax_next: next }) => {
    const answer = answerer.answer(text, "full", "", next.length, () => {});
    const end = next.includes(STOP) ? next.indexOf(STOP) : next.length;
    assert.deepEqual([...answer.tokens], next.slice(0, end), `not what transformers answers to: ${text}`);
    return { policy: "full", budget: "", tokens: next.length, text, answer: answer.text };
  });
  for (const [policy, budget] of CASES) {
    const given = [policy, budget, String(TOKENS)];
    const answer = execFileSync(host, given, { input: story, encoding: "utf8" });
    let pieces = "";
    const found = answerer.answer(story, policy, budget, TOKENS, (piece) => (pieces += piece));
    assert.equal(found.text, answer, `${policy} in node`);
    assert.equal(pieces, answer, `pieces of ${policy} in node`);
    asked.push({ policy, budget, tokens: TOKENS, text: story, answer });
  }
  return asked;
}

/** Serves the files of the repository. */
async function serve() {
  const types = { ".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm" };
  const server = createServer(async (request, response) => {
    const path = new URL(request.url, "http://localhost").pathname;
    const body = await readFile(join(root, path)).catch(() => null);
    response.writeHead(body ? 200 : 404, { "content-type": types[extname(path)] ?? "application/octet-stream" });
    response.end(body);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return server;
}

/** Opens a page in the browser, driven over the DevTools protocol through pipes; returns what evaluates a script in it. */
async function open(profile, url) {
  const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"];
  const stdio = ["ignore", "ignore", "ignore", "pipe", "pipe"];
  const process = spawn(browser, [...flags, `--user-data-dir=${profile}`], { stdio });
  const [, , , to, from] = process.stdio;
  const waiting = new Map();
  let read = "";
  from.setEncoding("utf8").on("data", (data) => {
    const messages = (read + data).split("\0");
    read = messages.pop();
    for (const { id, result, error } of messages.map((message) => JSON.parse(message))) {
      waiting.get(id)?.(error ? Promise.reject(new Error(error.message)) : result);
    }
  });
  let last = 0;
  const call = (method, params, sessionId) => {
    to.write(`${JSON.stringify({ id: (last += 1), method, params, sessionId })}\0`);
    return new Promise((done) => waiting.set(last, done));
  };
  const { targetId } = await call("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await call("Target.attachToTarget", { targetId, flatten: true });
  await call("Page.navigate", { url }, sessionId);
  const evaluate = async (expression) => {
    const how = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails: failed } = await call("Runtime.evaluate", how, sessionId);
    if (failed) throw new Error(failed.exception?.description ?? failed.text);
    return result.value;
  };
  const close = () => {
    const closed = new Promise((done) => process.on("exit", done));
    call("Browser.close");
    return closed;
  };
  return { evaluate, close };
}

/** Runs in the page: fills the form as a reader does, and waits for the answer. */
async function ask(given) {
  const find = async (selector) => {
    let found;
    while (!(found = document.querySelector(selector))) await new Promise((done) => setTimeout(done, 50));
    return found;
  };
  await find("button:enabled");
  const { elements } = document.forms[0];
  for (const name of ["policy", "budget", "text", "tokens"]) elements[name].value = given[name];
  elements.policy.dispatchEvent(new Event("change"));
  document.forms[0].querySelector("button").click();
  await find("button:enabled");
  return ["answer", "took"].map((id) => document.getElementById(id).textContent);
}

const asked = await expected();
const profile = await mkdtemp(join(tmpdir(), "browser-"));
const server = await serve();
const page = await open(profile, `http://127.0.0.1:${server.address().port}/examples/browser/index.html`);
try {
  for (const { answer, ...given } of asked) {
    const [text, took] = await page.evaluate(`(${ask})(${JSON.stringify(given)})`);
    const name = `${given.policy} ${given.budget}`.trim();
    assert.equal(text, answer, `${name} in the page, which says: ${took}`);
    const [held, full] = [...took.matchAll(/([\d,.]+) KiB/g)].map(([, kib]) => Number(kib.replaceAll(",", "")));
    assert(given.policy === "full" || held < full / 2, took);
    console.log(`${name}, ${given.tokens} tokens: ${took}`);
  }
  console.log(`${asked.length} passed`);
} finally {
  await page.close();
  server.close();
  await rm(profile, { recursive: true, force: true });
}
