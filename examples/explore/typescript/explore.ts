// Explores three branches of a sandbox over the line protocol, tests each, and
// keeps the first that passes. It requires only Node.

import { execFileSync } from "node:child_process";
import { connect, type Socket } from "node:net";
import { createInterface } from "node:readline";

const tries: Record<string, string> = {
  guess: "echo 41 >/var/tmp/answer",
  arithmetic: "echo $((6 * 7)) >/var/tmp/answer",
  despair: "rm -rf /usr/lib/git-core", // damages only this branch
};
const test = 'test "$(cat /var/tmp/answer)" = 42';

interface Answer {
  ok?: boolean;
  error?: string;
  stdout?: string;
  stderr?: string;
  head?: string;
  node?: string;
  exit?: number;
}

/** A connection to the socket of one sandbox: one JSON object a line, each way. */
class Sandbox {
  private readonly socket: Socket;
  private readonly lines: AsyncIterator<string>;

  constructor(path: string) {
    this.socket = connect(path);
    this.lines = createInterface({ input: this.socket })[Symbol.asyncIterator]();
  }

  /** Sends a request, prints the output, and returns the last answer. */
  async call(op: string, fields: Record<string, string> = {}): Promise<Answer> {
    this.socket.write(JSON.stringify({ op, ...fields }) + "\n");
    for (;;) {
      const line = await this.lines.next();
      if (line.done) throw new Error(`${op}: the daemon closed the connection`);
      const answer = JSON.parse(line.value) as Answer;
      if (answer.error !== undefined) throw new Error(`${op}: ${answer.error}`);
      if (answer.ok) return answer;
      process.stdout.write(answer.stdout ?? "");
      process.stderr.write(answer.stderr ?? "");
    }
  }

  close(): void {
    this.socket.end();
  }
}

function coppice(...args: string[]): string {
  return execFileSync("coppice", args, { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }).trim();
}

async function explore(sandbox: Sandbox): Promise<void> {
  const base = (await sandbox.call("head")).head!;
  let winner: { name: string; node: string } | undefined;
  for (const [name, cmd] of Object.entries(tries)) {
    await sandbox.call("checkout", { node: base });
    const node = (await sandbox.call("exec", { cmd })).node!;
    const { exit } = await sandbox.call("exec", { cmd: test });
    if (exit === 0) winner ??= { name, node };
  }
  if (!winner) throw new Error("no candidate passed the test");
  await sandbox.call("checkout", { node: winner.node });
  process.stdout.write(`${winner.name} won: `);
  await sandbox.call("exec", { cmd: "cat /var/tmp/answer" });
}

const name = coppice("create");
try {
  const sandbox = new Sandbox(coppice("system", "socket", name));
  await explore(sandbox);
  sandbox.close();
} finally {
  coppice("rm", "--force", name);
}
