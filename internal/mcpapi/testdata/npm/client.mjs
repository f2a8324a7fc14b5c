// The client of the official TypeScript SDK works in a sandbox with the tools of coppice mcp.
//
//   node client.mjs COPPICE SANDBOX

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The packages are installed in $MODULES, and not beside this file.
const find = createRequire(process.env.MODULES + "/");
const load = (name) => import(pathToFileURL(find.resolve(name)).href);
const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js");

const [coppice, sandbox] = process.argv.slice(2);
const client = new Client({ name: "typescript", version: "1" });
await client.connect(new StdioClientTransport({
  command: coppice, args: ["mcp", "--sandbox", sandbox], env: process.env, stderr: "inherit",
}));
assert.equal(client.getServerVersion().name, "coppice");
assert.match(client.getInstructions(), /history/);

const { tools } = await client.listTools();
assert.equal(tools.length, 12);

const lines = [];
const made = await client.callTool(
  { name: "exec", arguments: { cmd: "for i in 1 2 3; do echo line $i; sleep 0.2; done; echo hello >~/f" } },
  undefined,
  { onprogress: (p) => lines.push(p.message), resetTimeoutOnProgress: true },
);
assert.ok(!made.isError);
assert.equal(made.structuredContent.exit, 0);
assert.equal(made.structuredContent.stdout, "line 1\nline 2\nline 3\n");
assert.match(lines.join("\n"), /line 2/);

const back = await client.callTool({ name: "checkout", arguments: { node: "HEAD~1" } });
assert.equal(back.structuredContent.from, made.structuredContent.node);
const gone = await client.callTool({ name: "exec", arguments: { cmd: "cat ~/f" } });
assert.equal(gone.structuredContent.exit, 1);

const failed = await client.callTool({ name: "show", arguments: { node: "nothing" } });
assert.equal(failed.isError, true);
assert.match(failed.content[0].text, /^THIS TOOL DID NOT EXECUTE, AND NO RESULT OF IT MAY BE INVENTED\./);

const log = await client.readResource({ uri: `coppice://${sandbox}/log` });
assert.equal(log.contents[0].mimeType, "application/json");
assert.ok(JSON.parse(log.contents[0].text).nodes.length >= 3);

await assert.rejects(client.callTool({ name: "exec", arguments: { cmd: "sleep 1000" } }, undefined, { signal: AbortSignal.timeout(500) }));
await client.close();
console.log("ok");
