//go:build linux

package cli_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// labClient is a program that users run, and what it does with the host of its name.
type labClient struct {
	name   string
	needs  string   // a program, or modules of Debian's Python after "python3: "
	port   int      // 0 means 443
	script string   // runs in the sandbox; $H is the host
	want   []string // expected parts of the output
}

// noConfig disables the configuration of the user who runs the tests.
var noConfig = []string{
	"PIP_CONFIG_FILE=/dev/null", "NPM_CONFIG_USERCONFIG=/dev/null", "NPM_CONFIG_GLOBALCONFIG=/nonexistent",
	"GIT_CONFIG_GLOBAL=/dev/null",
	"GIT_CONFIG_SYSTEM=/dev/null", "GOENV=off", "GOFLAGS=", "PYTHONUNBUFFERED=1",
}

// systemCAs is the file with the certificate authorities of Debian's programs.
const systemCAs = "/etc/ssl/certs/ca-certificates.crt"

var labClients = []labClient{
	{name: "curl", needs: "curl", script: `curl -qsS https://$H/hello`,
		want: []string{"hello from curl.lab.test over HTTP/2.0"}},
	{name: "curl-http1", needs: "curl", script: `curl -qsS --http1.1 https://$H/hello`, want: []string{"over HTTP/1.1"}},
	{name: "curl-plain", needs: "curl", port: 80, script: `curl -qsS http://$H/hello`,
		want: []string{"hello from curl-plain.lab.test"}},
	{name: "wget", needs: "wget", script: `wget --no-config -qO- https://$H/hello`,
		want: []string{"hello from wget.lab.test"}},
	{name: "git", needs: "git", script: `git clone -q https://$H/git/repo.git clone; cat clone/greeting; cd clone; git ls-remote origin; echo more >>greeting
		git -c user.name=l -c user.email=l@lab.test commit -qam more; git push -q origin HEAD:more; git ls-remote origin more`,
		want: []string{"hello by git", "refs/heads/main", "refs/heads/more"}},
	{name: "apt", needs: "dpkg-deb", script: `echo "deb [trusted=yes] https://$H/apt ./" >/etc/apt/lab.list
		apt="apt-get -qq -o Dir::Etc::sourcelist=/etc/apt/lab.list -o Dir::Etc::sourceparts=- -o Acquire::Languages=none"
		$apt update; $apt install -y lab-greeting >/dev/null; cat /usr/share/lab-greeting`, want: []string{"hello by apt"}},
	{name: "npm", needs: "npm", script: `mkdir -p npm; cd npm; echo '{}' >package.json
		NODE_EXTRA_CA_CERTS=` + systemCAs + ` npm install --registry https://$H/npm/ --cache $PWD/cache --no-audit --no-fund --no-update-notifier lab-greeting
		node -e 'console.log(require("lab-greeting"))'`, want: []string{"hello by npm"}},
	{name: "pip", needs: "python3: pip", script: `/usr/bin/python3 -m pip install -q --no-cache-dir --disable-pip-version-check --cert ` + systemCAs + ` --index-url https://$H/simple/ --target pip lab-greeting
		PYTHONPATH=pip /usr/bin/python3 -c 'import lab_greeting; print(lab_greeting.text)'`, want: []string{"hello by pip"}},
	{name: "go", needs: "go", script: `mkdir -p gomod; cd gomod; GOPROXY=https://$H/go GOSUMDB=off GOTOOLCHAIN=local GOMODCACHE=$PWD/mod GOCACHE=$PWD/cache go mod download -json lab.test/greeting@v1.0.0
		cat mod/lab.test/greeting@v1.0.0/greeting.go`, want: []string{`"Version": "v1.0.0"`, "hello by go"}},
	{name: "requests", needs: "python3: requests",
		script: `/usr/bin/python3 -c 'import requests, sys; r = requests.get("https://" + sys.argv[1] + "/hello"); print(r.status_code, r.text)' $H`,
		want:   []string{"200 hello from requests.lab.test"}},
	{name: "node", needs: "node",
		script: `NODE_EXTRA_CA_CERTS=` + systemCAs +
			` node -e 'fetch("https://" + process.argv[1] + "/hello").then(r => r.text()).then(console.log)' $H`,
		want: []string{"hello from node.lab.test"}},
	{name: "java", needs: "javac", script: `cat >Get.java <<'X'
import java.net.URI; import java.net.http.*;
class Get { public static void main(String[] a) throws Exception {
	HttpResponse<String> r = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString());
	System.out.println(r.version() + " " + r.body()); System.exit(0); } }
X
		rm -f trust; keytool -importcert -noprompt -alias lab -file /usr/local/share/ca-certificates/lab.crt -keystore trust -storepass changeit
		java -Djavax.net.ssl.trustStore=trust -Djavax.net.ssl.trustStorePassword=changeit Get.java https://$H/hello`, want: []string{"HTTP_2 hello from java.lab.test"}},
	{name: "ws", needs: "python3: websockets", script: `/usr/bin/python3 - $H <<'X'
import asyncio, ssl, sys, websockets
async def main():
    async with websockets.connect("wss://" + sys.argv[1] + "/ws", ssl=ssl.create_default_context()) as ws:
        for text in "one", "two" * 50000:
            await ws.send(text)
            got = await ws.recv()
            print(got[:8], len(got))
asyncio.run(main())
X`, want: []string{"echo one 8", "echo two 150005"}},
	{name: "grpc", needs: "python3: grpc", script: `/usr/bin/python3 - $H <<'X'
import grpc, sys
with grpc.secure_channel(sys.argv[1] + ":443", grpc.ssl_channel_credentials(open("` + systemCAs + `", "rb").read())) as c:
    print(c.unary_unary("/lab.Echo/Say")(b"once", timeout=60))
    print(list(c.stream_stream("/lab.Echo/Say")(iter([b"one", b"two"]), timeout=60)))
X`, want: []string{"b'once'", "[b'one', b'two']"}},
}

// TestClients checks that common programs work in the sandbox as they do on the host, by TLS to hosts that are
// allowed by name, and that each connection is recorded.
func TestClients(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.packages()
	others := []string{"v4", "inside", "mixed", "own", "rebind", "redirect", "front", "h3"}
	var flags []string
	for _, c := range labClients {
		port := ""
		if c.port != 0 {
			port = fmt.Sprintf(":%d", c.port)
		}
		flags = append(flags, "--allow", c.name+".lab.test"+port)
	}
	for _, name := range others {
		flags = append(flags, "--allow", name+".lab.test")
	}
	l.box(flags...)

	for _, c := range labClients {
		t.Run(c.name, func(t *testing.T) { l.with(t).serves(c) })
	}

	t.Run("a redirect", func(t *testing.T) {
		l := l.with(t)
		out, err := l.sh(`no curl -qsSL "https://redirect.lab.test/away?to=https://evil.lab.test/secret"; no wget --no-config -O- --tries=1 "https://redirect.lab.test/away?to=https://evil.lab.test/secret"
			no /usr/bin/python3 -c 'import urllib.request; urllib.request.urlopen("https://redirect.lab.test/away?to=https://evil.lab.test/secret")'
			no curl -qsSkL --connect-timeout 20 "https://redirect.lab.test/away?to=https://` + labEvil4 + `/secret"; no curl -qsSkL --connect-timeout 20 "https://redirect.lab.test/away?to=https://[` + labEvil6 + `]/secret"`)
		if err != nil || !strings.Contains(out, "Could not resolve host: evil.lab.test") {
			t.Errorf("%v: %s", err, out)
		}
		l.denied("dns", "evil.lab.test", "")
		for _, addr := range []string{labEvil4, labEvil6} {
			l.told(addr+" denied",
				func(ev wire.NetEvent) bool { return ev.Kind == wire.NetDeny && ev.Addr == addr && ev.Port == 443 })
		}
		l.spared("evil.lab.test")
		if !strings.Contains(l.hits(), "http redirect.lab.test GET /away") {
			t.Error("nothing was redirected")
		}
	})

	// The sandbox connects to a denied name at an address that is allowed for another name.
	t.Run("another name behind the address", func(t *testing.T) {
		l := l.with(t)
		out, err := l.sh(`curl -qsS https://front.lab.test/hello; no curl -qsS --connect-timeout 20 --resolve evil.lab.test:443:` + labHosts6 + ` https://evil.lab.test/secret
			no curl -qsS --connect-timeout 20 http://front.lab.test/secret`)
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		l.denied("tcp", "front.lab.test", "the ClientHello is for evil.lab.test")
		l.told("denial of port 80", func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetDeny && ev.Name == "front.lab.test" && ev.Port == 80
		})
		l.spared("evil.lab.test")
	})

	t.Run("names that lead inside", func(t *testing.T) {
		l := l.with(t)
		out, err := l.sh(
			`no curl -qsS https://inside.lab.test/; no curl -qsS --connect-timeout 20 https://own.lab.test/; curl -qsS https://mixed.lab.test/hello`)
		if err != nil || !strings.Contains(out, "hello from mixed.lab.test") {
			t.Errorf("%v: %s", err, out)
		}
		l.denied("dns", "inside.lab.test", "the name leads to ")
		l.told("denial of the daemon's host", func(ev wire.NetEvent) bool {
			return ev.Name == "own.lab.test" && strings.Contains(ev.Reason, "an address of the host itself")
		})
		l.told("connection to mixed at its public address", func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetConnect && ev.Name == "mixed.lab.test" && ev.Addr == labHosts6
		})
	})

	// The name server's second answer is a loopback address.
	t.Run("a name that is bound anew", func(t *testing.T) {
		l := l.with(t)
		for range 2 { // the first answer is cached
			if out, err := l.sh(`curl -qsS https://rebind.lab.test/hello`); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		if n := strings.Count(l.hits(), "dns rebind.lab.test 28\n"); n != 1 {
			t.Errorf("the name server received %d queries", n)
		}
		l.run("stop", sandbox)
		if out, err := l.sh(`no curl -qsS https://rebind.lab.test/hello`); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		l.denied("dns", "rebind.lab.test", "the name leads to ")
	})

	// A rule with addresses also allows ones that are not public. A name with such an address needs both rules.
	t.Run("IPv4", func(t *testing.T) {
		l := l.with(t)
		if out, err := l.sh(`no curl -qsS https://v4.lab.test/hello`); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		l.denied("dns", "v4.lab.test", "a documentation address")
		l.run("net", "allow", sandbox, labHosts4+":443")
		out, err := l.sh(`curl -qsS https://v4.lab.test/hello; wget --no-config -qO- https://v4.lab.test/hello`)
		if err != nil || strings.Count(out, "hello from v4.lab.test") != 2 {
			t.Errorf("%v: %s", err, out)
		}
		l.told("connection", func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetConnect && ev.Name == "v4.lab.test" && ev.Addr == labHosts4
		})
	})

	// Chromium uses HTTP/3 with the host that the flag names. The host is allowed, but UDP is not: a rule without a
	// protocol is for TCP only.
	t.Run("HTTP3", func(t *testing.T) {
		l := l.with(t)
		l.need("chromium")
		out, err := l.sh(`timeout 150 chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync \
			--user-data-dir=$PWD/chromium --ignore-certificate-errors --enable-quic --origin-to-force-quic-on=h3.lab.test:443 --dump-dom https://h3.lab.test/hello || true`)
		if err != nil || strings.Contains(out, "hello from") {
			t.Errorf("%v: %s", err, out)
		}
		l.told("denial of UDP", func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetDeny && ev.Proto == "udp" && ev.Name == "h3.lab.test" && ev.Port == 443
		})
		if strings.Contains(l.hits(), "http h3.lab.test") {
			t.Error("the page was loaded")
		}
	})
}

// serves checks that a program works in the sandbox, and that its connection is recorded.
func (l *lab) serves(c labClient) {
	l.t.Helper()
	l.need(c.needs)
	host, port := c.name+".lab.test", c.port
	if port == 0 {
		port = 443
	}
	out, err := l.sh("H=" + host + "; " + c.script)
	if err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	for _, want := range c.want {
		if !strings.Contains(out, want) {
			l.t.Errorf("output %q, missing %q", out, want)
		}
	}
	if !strings.Contains(l.hits(), " "+host+" ") {
		l.t.Errorf("no request reached the host: %s", l.hits())
	}
	var p wire.PolicyResult
	if err := json.Unmarshal([]byte(l.run("policy", "show", sandbox, "--json")), &p); err != nil {
		l.t.Fatal(err)
	}
	l.told("the lookup", func(ev wire.NetEvent) bool { return ev.Kind == wire.NetDNS && ev.Name == host })
	ev := l.told("the connection", func(ev wire.NetEvent) bool {
		return ev.Kind == wire.NetConnect && ev.Name == host && ev.Port == port
	})
	if ev.Verdict != "allow" || ev.Rule == "" || ev.Policy != p.Digest {
		l.t.Errorf("the connection is recorded as %+v", ev)
	}
	l.told("end with bytes", func(ev wire.NetEvent) bool {
		return ev.Kind == wire.NetEnd && ev.Name == host && ev.In > 0 && ev.Out > 0
	})
}

// with returns the lab for a subtest.
func (l *lab) with(t *testing.T) *lab {
	d := *l.desk
	d.t = t
	return &lab{desk: &d, root: l.root, far: l.far, into: l.into, asPod: l.asPod}
}

// box creates the sandbox, without the user's configuration, and with the lab's authority as trusted.
func (l *lab) box(flags ...string) {
	l.t.Helper()
	l.run(slices.Concat([]string{"create", sandbox, "--from", "host", "--no-repo"}, plainEnv(), flags)...)
	ca, err := os.ReadFile(filepath.Join(l.root, "ca.pem"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.file("/usr/local/share/ca-certificates/lab.crt", string(ca))
	if out, err := l.sh("update-ca-certificates"); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
}

// plainEnv are flags of coppice create for the environment of clients.
func plainEnv() (flags []string) {
	for _, v := range append([]string{"PATH"}, noConfig...) {
		flags = append(flags, "--env", v)
	}
	return flags
}

// need skips the test if a program, or a module of Debian's Python, is not installed.
func (l *lab) need(what string) {
	l.t.Helper()
	if module, ok := strings.CutPrefix(what, "python3: "); ok {
		if err := exec.Command("/usr/bin/python3", "-c", "import "+module).Run(); err != nil {
			l.t.Skipf("needs python3-%s: to be a client", module)
		}
		return
	}
	if _, err := exec.LookPath(what); err != nil {
		l.t.Skipf("needs %s: to be a client", what)
	}
}

// spared verifies that no request for a host, and no lookup of its name, left the sandbox.
func (l *lab) spared(host string) {
	l.t.Helper()
	for line := range strings.Lines(l.hits()) {
		if slices.Contains(strings.Fields(line), host) || strings.Contains(line, "/secret") {
			l.t.Errorf("a denied host was reached: %s", line)
		}
	}
}

// packages creates the content of the lab's hosts for git, apt, npm, pip and Go.
func (l *lab) packages() {
	l.t.Helper()
	do := func(script string) {
		l.t.Helper()
		cmd := exec.Command("sh", "-ec", script, "sh", l.root)
		cmd.Env = append(os.Environ(), noConfig...)
		if out, err := cmd.CombinedOutput(); err != nil {
			l.t.Fatalf("%v: %s", err, out)
		}
	}
	do(`cd "$1"; mkdir -p www git; git init -q -b main git/work; cd git/work; echo hello by git >greeting; git add .
		git -c user.name=l -c user.email=l@lab.test commit -qm first; git clone -q --bare . ../repo.git; git -C ../repo.git config http.receivepack true`)
	if _, err := exec.LookPath("dpkg-deb"); err == nil {
		l.write("deb/DEBIAN/control",
			"Package: lab-greeting\nVersion: 1\nArchitecture: all\nMaintainer: lab <lab@lab.test>\nDescription: says hello\n")
		l.write("deb/usr/share/lab-greeting", "hello by apt\n")
		do(`cd "$1"; mkdir -p www/apt; dpkg-deb --root-owner-group --build deb www/apt/g.deb >/dev/null; cd www/apt
			{ cat ../../deb/DEBIAN/control; echo "Filename: ./g.deb"; echo "Size: $(stat -c %s g.deb)"; echo "SHA256: $(sha256sum <g.deb | cut -d' ' -f1)"; } >Packages
			{ echo "Suite: lab"; echo SHA256:; echo " $(sha256sum <Packages | cut -d' ' -f1) $(stat -c %s Packages) Packages"; } >Release`)
	}

	var tgz bytes.Buffer
	gz := gzip.NewWriter(&tgz)
	tw := tar.NewWriter(gz)
	for name, text := range map[string]string{"package.json": `{"name":"lab-greeting","version":"1.0.0"}`,
		"index.js": `module.exports = "hello by npm"`} {
		if err := tw.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			l.t.Fatal(err)
		}
		if _, err := io.WriteString(tw, text); err != nil {
			l.t.Fatal(err)
		}
	}
	for _, c := range []io.Closer{tw, gz} {
		if err := c.Close(); err != nil {
			l.t.Fatal(err)
		}
	}
	sum := sha512.Sum512(tgz.Bytes())
	l.write("www/npm/tarballs/g.tgz", tgz.String())
	l.write("www/npm/lab-greeting", fmt.Sprintf(`{"name":"lab-greeting","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"lab-greeting","version":"1.0.0",
		"dist":{"tarball":"https://npm.lab.test/npm/tarballs/g.tgz","integrity":"sha512-%s"}}}}`, base64.StdEncoding.EncodeToString(sum[:])))

	const wheel = "lab_greeting-1.0-py3-none-any.whl"
	l.write("www/simple/lab-greeting/index.html", `<a href="/wheels/`+wheel+`">`+wheel+`</a>`)
	const info = "lab_greeting-1.0.dist-info/"
	l.zip("www/wheels/"+wheel, map[string]string{
		"lab_greeting.py": `text = "hello by pip"`,
		info + "METADATA": "Metadata-Version: 2.1\nName: lab-greeting\nVersion: 1.0\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":   "lab_greeting.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n",
	})

	const module = "www/go/lab.test/greeting/@v/"
	l.write(module+"list", "v1.0.0\n")
	l.write(module+"v1.0.0.info", `{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`)
	l.write(module+"v1.0.0.mod", "module lab.test/greeting\n")
	l.zip(module+"v1.0.0.zip", map[string]string{
		"lab.test/greeting@v1.0.0/go.mod":      "module lab.test/greeting\n",
		"lab.test/greeting@v1.0.0/greeting.go": "package greeting\n\nconst Text = \"hello by go\"\n",
	})
}

func (l *lab) zip(name string, files map[string]string) {
	l.t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		l.t.Fatal(err)
	}
	l.write(name, b.String())
}
