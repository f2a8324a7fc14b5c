// Uses the documentation page like a person with a keyboard and a token, and prints
// "ok" when all of it works.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import process from "node:process";

const { CHROMIUM, MODULES, SANDBOX, SHOT, TOKEN, URL: origin } = process.env;
const { chromium } = createRequire(`${MODULES}/package.json`)("playwright-core");

const browser = await chromium.launch({
  executablePath: CHROMIUM,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
});
const page = await browser.newPage({ colorScheme: "light", viewport: { width: 1280, height: 1000 } });
page.setDefaultTimeout(120_000); // for a busy machine
const wrong = [];
page.on("console", (m) => ["error", "warning"].includes(m.type()) && wrong.push(`console: ${m.text()}`));
page.on("pageerror", (e) => wrong.push(`error: ${e.message}`));
page.on("request", (r) => new URL(r.url()).origin === origin || r.url().startsWith("data:") || wrong.push(`left: ${r.url()}`));
page.on("requestfailed", (r) => wrong.push(`failed: ${r.url()}`));

// All operations are shown.
const res = await page.goto(`${origin}/docs`);
const policy = res.headers()["content-security-policy"];
assert.match(policy, /default-src 'none'/);
assert.doesNotMatch(policy, /unsafe|\*|http/);
const doc = await (await page.request.get(`${origin}/openapi.json`)).json();
const want = Object.entries(doc.paths).flatMap(([path, ops]) => Object.keys(ops).map((m) => `${m.toUpperCase()} ${path}`));
await page.waitForFunction((n) => document.querySelectorAll(".opblock").length >= n, want.length);
const shown = await page.locator(".opblock").evaluateAll((all) => all.map((b) =>
  `${b.querySelector(".opblock-summary-method").textContent} ${b.querySelector(".opblock-summary-path").dataset.path}`));
assert.deepEqual(shown.sort(), want.sort());
// The page is still rendering schemas. The keyboard cannot reach what is not rendered when it passes.
for (let before = 0, now = -1; now !== before;) {
  before = now;
  now = await page.evaluate(() => new Promise((done) => requestIdleCallback(() => done(document.querySelectorAll("*").length))));
}

// The keyboard reaches every control, and the focus is visible. The page itself records
// the focus: a query after each of many hundred keys would double the time.
await page.evaluate(() => {
  window.there = [...document.querySelectorAll("button, a[href], input, select, textarea")]; // more may be rendered meanwhile
  window.reached = new Set();
  window.unseen = [];
  window.round = false;
  document.addEventListener("focusin", ({ target }) => {
    window.round ||= window.reached.has(target);
    window.reached.add(target);
    const { outlineStyle, outlineWidth } = getComputedStyle(target);
    if (outlineStyle === "none" || outlineWidth === "0px") window.unseen.push(target.outerHTML.slice(0, 200));
  });
});
// One step for each element, and some for the browser's own controls.
const most = 100 + await page.evaluate(() => document.querySelectorAll("*").length);
for (let pressed = 0, round = false; !round; pressed += 50) {
  assert(pressed < most, `${pressed} steps, and not round yet`);
  for (let i = 0; i < 50; i++) await page.keyboard.press("Tab");
  round = await page.evaluate(() => window.round);
}
const { steps, unseen } = await page.evaluate(() => ({ steps: window.reached.size, unseen: window.unseen }));
assert.deepEqual(unseen, []);
const missed = await page.evaluate(() => window.there
  .filter((e) => e.isConnected && e.checkVisibility() && !e.disabled && e.tabIndex >= 0 && !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 200)));
assert.deepEqual(missed, []);
assert(steps > want.length, `${steps} steps`);

// A token is entered by keyboard, and stays in the page.
await page.locator(".auth-wrapper .authorize").first().focus();
await page.keyboard.press("Enter");
const given = page.locator(".dialog-ux input");
await given.fill(TOKEN);
await given.press("Enter");
await page.locator(".dialog-ux .btn-done").press("Enter");

// An operation is opened, sent, and answered.
const send = async (id, fill) => {
  const op = page.locator(`#operations-${id}`);
  await op.locator(".opblock-summary-control").press("Enter");
  await op.locator("button.execute").waitFor();
  for (const [name, value] of Object.entries(fill)) {
    await op.locator(`tr[data-param-name="${name}"] input`).fill(value);
  }
  await op.locator("button.execute").press("Enter");
  const answer = op.locator(".live-responses-table tbody tr.response");
  await answer.waitFor();
  return { code: (await answer.locator(".response-col_status").textContent()).trim(), body: await answer.locator(".response-col_description").textContent() };
};
const list = await send("sandboxes-listSandboxes", {});
assert.equal(list.code, "200");
assert(list.body.includes(`"name": "${SANDBOX}"`), list.body);
const exec = await send("exec-exec", { name: SANDBOX });
assert.equal(exec.code, "200");
assert(exec.body.includes("hello"), exec.body);
if (SHOT) await page.screenshot({ path: `${SHOT}-light.png` });

// Light and dark, as the browser prefers.
const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor + getComputedStyle(document.documentElement).backgroundColor);
const light = await paper();
await page.emulateMedia({ colorScheme: "dark" });
await page.waitForFunction(() => document.documentElement.classList.contains("dark-mode"));
assert.notEqual(await paper(), light);
if (SHOT) await page.screenshot({ path: `${SHOT}-dark.png` });

// The page fits the screen of a phone.
await page.setViewportSize({ width: 390, height: 800 });
const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
if (SHOT) await page.screenshot({ path: `${SHOT}-narrow.png` });
assert(over <= 0, `${over} pixels too wide`);

await browser.close();
assert.deepEqual(wrong, []);
process.stdout.write("ok\n");
