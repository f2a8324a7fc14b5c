//go:build linux

package cli_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestClients_Locked checks that common programs work in a locked workspace, which has no namespaces, as in other
// tiers, and that nothing but what the rules allow is reached: of real root, and of a user in a pod whose runtime
// refuses namespaces and pidfd_getfd(2).
func TestClients_Locked(t *testing.T) {
	t.Parallel()
	t.Run("root", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		l.locked("curl", "git")
	})
	t.Run("pod", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		at, err := exec.LookPath("inpod")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(reachable(filepath.Dir(at)), os.Mkdir(l.dir, 0o700), os.Chown(l.dir, podID, podID), os.Chmod(l.root, 0o755)); err != nil {
			t.Fatal(err)
		}
		l.asPod = []string{"inpod", podUser}
		var all []string
		for _, c := range labClients {
			if !slices.Contains([]string{"apt", "java"}, c.name) { // they change directories of the system
				all = append(all, c.name)
			}
		}
		l.locked(all...)
	})
}

// datagramPrograms query the gate's DNS server with datagrams for $N.lab.test, whatever address they send them to, and
// are idle in between.
const datagramPrograms = `
/usr/bin/python3 - <<'X'
import asyncio, os, time
name = os.environ["N"].encode()
query = b"\0\7\1\0\0\1\0\0\0\0\0\0" + bytes([len(name)]) + name + b"\3lab\4test\0\0\1\0\1"
class P(asyncio.DatagramProtocol):
    def connection_made(self, t): self.got = asyncio.Queue()
    def datagram_received(self, data, addr): self.got.put_nowait((data[:4], addr))
    def error_received(self, e): self.got.put_nowait(e)
async def main():
    for how in dict(local_addr=("0.0.0.0", 0)), dict(remote_addr=("198.51.100.1", 53)):
        t, p = await asyncio.get_running_loop().create_datagram_endpoint(P, **how)
        begun = time.process_time(); await asyncio.sleep(2); used = time.process_time() - begun
        for server in ["198.51.100.1"] if "remote_addr" in how else ["198.51.100.1", "198.51.100.2", "8.8.8.8"]:
            t.sendto(query, None if "remote_addr" in how else (server, 53)); got = await asyncio.wait_for(p.got.get(), 60)
            if got != (b"\0\7\x81\x80", (server, 53)): raise SystemExit(repr(got))
        if used > 0.5: raise SystemExit("an idle loop uses %f s" % used)
        t.close()
asyncio.run(main()); print("asyncio ok")
X
node -e '
const fail = e => { console.log("error", e); process.exit(1) }, N = process.env.N
const name = Buffer.from(N), query = Buffer.concat([Buffer.from([0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, name.length]), name,
  Buffer.from("\x03lab\x04test\x00\x00\x01\x00\x01")])
const s = require("dgram").createSocket("udp4").on("error", fail), cpu = process.cpuUsage()
s.bind(0, () => setTimeout(() => { if (process.cpuUsage(cpu).user > 5e5) fail("an idle loop uses the processor")
  s.connect(53, "198.51.100.1", () => s.send(query, e => { if (e) fail(e) })) }, 1000))
s.on("message", m => s.close(() => console.log(m[1] == 7 && m[3] == 0x80 ? "node ok" : m)))
const free = require("dgram").createSocket("udp4").on("error", fail), servers = ["198.51.100.1", "198.51.100.2", "8.8.8.8"]
const ask = () => free.send(query, 53, servers[0], e => { if (e) fail(e) }) // without connect
free.on("message", (m, from) => { if (m[1] != 7 || m[3] != 0x80 || from.address != servers.shift() || from.port != 53) fail([m, from])
  if (servers.length) ask(); else free.close(() => console.log("node without connect ok")) })
ask()'`

// locked checks the clients with the given names, and what is not allowed, in a locked workspace.
func (l *lab) locked(names ...string) {
	l.t.Helper()
	l.packages()
	l.trusted()
	var clients []labClient
	var flags []string
	for _, c := range labClients {
		if slices.Contains(names, c.name) {
			clients = append(clients, c)
			flags = append(flags, "--allow", fmt.Sprintf("%s.lab.test:%d", c.name, cmp.Or(c.port, 443)))
		}
	}
	l.run(slices.Concat([]string{"create", sandbox, "--tier", "workspace", "--driver", "copy", "--no-repo",
		"--from", filepath.Dir(l.write("work/file", "one\n"))}, plainEnv(), flags)...)
	for _, c := range clients {
		l.t.Run(c.name, func(t *testing.T) { l.with(t).serves(c) })
	}

	// Event loops use sockets for UDP before and after they have a peer, and one socket for several.
	l.t.Run("datagrams", func(t *testing.T) {
		l := l.with(t)
		l.need("python3")
		l.need("node")
		out, err := l.sh("export N=" + clients[0].name + datagramPrograms)
		if err != nil || !strings.Contains(out, "asyncio ok") || !strings.Contains(out, "node ok") ||
			!strings.Contains(out, "node without connect ok") {
			t.Errorf("%v: %s", err, out)
		}
	})

	l.t.Run("what no rule names", func(t *testing.T) {
		l := l.with(t)
		out, err := l.sh(`no curl -qsS https://evil.lab.test/secret; no curl -qsSk --connect-timeout 20 https://` + labEvil4 + `/secret
			no curl -qsSk --connect-timeout 20 'https://[` + labEvil6 + `]/secret'
			no curl -qsS --connect-timeout 20 --resolve evil.lab.test:443:` + labHosts6 + ` https://evil.lab.test/secret`)
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		l.denied("dns", "evil.lab.test", "")
		for _, addr := range []string{labEvil4, labEvil6} {
			l.told(addr+" denied",
				func(ev wire.NetEvent) bool { return ev.Kind == wire.NetDeny && ev.Addr == addr && ev.Port == 443 })
		}
		l.spared("evil.lab.test")
	})

	// The sandbox has its own ports, and reaches none of the host.
	l.t.Run("loopback", func(t *testing.T) {
		l := l.with(t)
		const service = `import http.server; s = http.server.HTTPServer(("", 8098), http.server.SimpleHTTPRequestHandler)
print("ready", flush=True); import threading; threading.Thread(target=s.serve_forever, daemon=True).start(); import sys; sys.stdin.read()`
		l.start(nil, l.into[0], append(slices.Clone(l.into[1:]), "/usr/bin/python3", "-c", service)...)
		out, err := l.sh(`echo own >page; /usr/bin/python3 -m http.server 8099 >/dev/null 2>&1 & trap "kill $!" EXIT
			for i in $(seq 600); do curl -qsS http://127.0.0.1:8099/page && break; sleep 0.1; done; no curl -qsS "http://[::1]:8099/page"; curl -qsS http://localhost:8099/page
			for at in 127.0.0.1 '[::1]' localhost 0.0.0.0 ` + labDaemon4 + ` '[` + labDaemon6 + `]'; do no curl -qsS --connect-timeout 20 http://$at:8098/; done`)
		if err != nil || strings.Count(out, "own\n") != 2 {
			t.Errorf("%v: %s", err, out)
		}
		if out, err := exec.Command(l.into[0], append(slices.Clone(l.into[1:]), "curl", "-qsS", "http://127.0.0.1:8098/")...).
			CombinedOutput(); err != nil {
			t.Errorf("the host's own service: %v: %s", err, out)
		}
	})
}
