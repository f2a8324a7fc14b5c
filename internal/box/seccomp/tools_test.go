//go:build linux && (amd64 || arm64)

package seccomp

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// argConfined is the argv[0] of a confined command: this binary, which installs the strictest filter and executes the
// command.
const argConfined = "seccomp-confined"

func TestMain(m *testing.M) {
	if os.Args[0] == argConfined {
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			_, err = Install(Hardening(Options{Netlink: len(os.Args) > 2 && os.Args[1] == "netlink"}), KeepSpeculation)
		}
		if err == nil {
			err = unix.Exec("/bin/sh", []string{"sh", "-c", os.Args[2]}, os.Environ())
		}
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func confined(t *testing.T, netlink bool, script string) (string, error) {
	t.Helper()
	word := "strict"
	if netlink {
		word = "netlink"
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{argConfined, word, script}, Dir: t.TempDir()}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// TestHardening_AllowsCommonTools runs everyday programs under the strictest filter. Programs that request a netlink
// socket must work without it.
func TestHardening_AllowsCommonTools(t *testing.T) {
	t.Parallel()
	tests := []struct{ tool, script, want string }{
		{"node", `node -e 'require("dns").lookup("localhost", (e, a) => console.log(e ? e.code : "looked up"))'`,
			"looked up"},
		{"node", `node -e 'require("fs").readFile("/etc/passwd", (e, d) => console.log(e ? e.code : "read"))'`, "read"},
		{"node", `node -e 'require("http").createServer().listen(0, "127.0.0.1", function () { console.log("listens"); this.close() })'`, "listens"},
		{"python3", `python3 -c 'import socket; socket.getaddrinfo("localhost", 80, flags=socket.AI_ADDRCONFIG); print("looked up")'`, "looked up"},
		{"python3", `python3 -c 'import threading, subprocess, multiprocessing as m; print(subprocess.run(["true"]).returncode, m.Pool(2).map(abs, [-1, 2]))'`, "0 [1, 2]"},
		{"git", `git init -q r && cd r && git -c user.name=n -c user.email=e commit -q --allow-empty -m m && git log --format=%s`, "m"},
		{"curl", `curl -sS --max-time 2 http://localhost:1 2>&1 | grep -o 'Failed to connect\|Could not connect'`, "onnect"},
		{"apt-get", `apt-get --version | head -n1 | cut -d' ' -f1`, "apt"},
		{"apt-config", `apt-config dump APT::Architecture | cut -d'"' -f2 | wc -l`, "1"},
		{"getent", `getent ahosts localhost | head -n1 | grep -c STREAM`, "1"},
		{"sh", `ulimit -n 64 && ulimit -n`, "64"},
		{"setarch", `setarch -R true && echo ran`, "ran"},
		{"perl", `perl -e 'use Socket; socketpair(A, B, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die; print "pair"'`, "pair"},
		{"gcc", `echo 'int main(){return 0;}' > a.c && gcc a.c && ./a.out && echo built`, "built"},
	}
	for _, tt := range tests {
		t.Run(tt.tool, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(tt.tool); err != nil {
				t.Skipf("needs %s: to run it confined", tt.tool)
			}
			out, err := confined(t, false, tt.script)
			if err != nil || !strings.Contains(out, tt.want) {
				t.Errorf("%s: %v\n%s", tt.script, err, out)
			}
		})
	}
}

// TestNetlink_IsNeededForInterfaces checks the purpose of the option Netlink.
func TestNetlink_IsNeededForInterfaces(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("needs node: to ask it for the interfaces")
	}
	const script = `node -e 'try { require("os").networkInterfaces(); console.log("listed") } catch (e) { console.log(e.message) }'`
	for netlink, want := range map[bool]string{false: "system error 97", true: "listed"} {
		out, err := confined(t, netlink, script)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("netlink=%v: %v %q, want %q", netlink, err, out, want)
		}
	}
}
