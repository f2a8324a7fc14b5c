// Marks each tool call in the history of the sandbox that this runs in; see
// coppice hook --help. Outside of a sandbox it does nothing.
import { connect } from "node:net"

const SOCKET = "/run/coppice.sock"

// mark never fails and never takes longer than two seconds.
const mark = (phase, label) =>
  new Promise((resolve) => {
    let answer = ""
    const timer = setTimeout(() => done(), 2000)
    const socket = connect(SOCKET, () => socket.write(JSON.stringify({ op: "mark", phase, label }) + "\n"))
    const done = () => {
      clearTimeout(timer)
      socket.destroy()
      resolve()
    }
    socket.setEncoding("utf8")
    socket.on("data", (d) => { if ((answer += d).includes("\n") || answer.length > 65536) done() })
    socket.on("error", done)
    socket.on("close", done)
  })

const labelOf = (tool, args) => {
  const keys = ["command", "filePath", "path", "url", "pattern", "query", "description", "prompt"]
  const what = keys.map((k) => args?.[k]).find((v) => typeof v === "string" && v) ?? ""
  return what ? `${tool}: ${what.slice(0, 400)}` : String(tool)
}

export const Coppice = async () => ({
  "tool.execute.before": async (input, output) => mark("begin", labelOf(input.tool, output?.args)),
  "tool.execute.after": async () => mark("end", ""),
})
