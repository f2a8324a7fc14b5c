//go:build linux && (amd64 || arm64)

package escape_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest/escape"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
)

// TestInotifyAsUser runs TestInotify_IsLeftToTheOwner as a user; see TestAsUser.
func TestInotifyAsUser(t *testing.T) { asUser(t, "^TestInotify_IsLeftToTheOwner$") }

// TestInotify_IsLeftToTheOwner exists because the kernel also counts the inotify instances of a user namespace for its
// owner: a sandbox could take all instances of its owner, usually 128.
func TestInotify_IsLeftToTheOwner(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		t.Skip("needs inotify: " + err.Error())
	}
	owners, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []sandbox{
		{"root/off", plan.UserRoot, plan.NetOff, false, false, ""},
		{"root/host", plan.UserRoot, plan.NetHost, false, false, ""},
	} {
		t.Run(s.name, func(t *testing.T) {
			o := plant(t, "secret-"+random(t))
			t.Cleanup(func() { _ = exec.Command("rm", "-rf", o.base, o.inTmp).Run() })
			b := start(t, o, s)
			most, all := hold(t, b, "inotify")
			left := 0
			for ; left < owners/2; left++ {
				fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
				if err != nil {
					break
				}
				defer unix.Close(fd)
			}
			if share := limit.OfHost(int64(owners), limit.Inotify); int64(most) > share || most == 0 {
				t.Errorf("a user of the sandbox has %d instances, want at most %d", most, share)
			}
			if left < owners/4 { // other processes of the owner have some
				t.Errorf("the sandbox has %d instances of %d, which leaves %d to its owner", all, owners, left)
			}
		})
	}
}

// hold makes the attacker create as many objects as it can in a box, and hold them until the test ends. It returns the
// most that one user has, and the total.
func hold(t *testing.T, b *box.Box, what string) (most, all int) {
	t.Helper()
	session, err := b.Exec(t.Context(),
		wire.ExecRequest{Cmd: []string{attacker, escape.HoldWord, what}, Dir: "/", Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	_ = session.SetDeadline(time.Now().Add(2 * time.Minute))
	var out bytes.Buffer
	for !strings.Contains(out.String(), "\n") {
		kind, p, err := wire.ReadFrame(session, nil)
		if err != nil || kind == wire.FrameExit || kind == wire.FrameFailed {
			t.Fatalf("frame %d %s: %v\n%s", kind, p, err, out.String())
		}
		if kind == wire.FrameStdout || kind == wire.FrameStderr {
			out.Write(p)
		}
	}
	if _, err := fmt.Sscan(out.String(), &most, &all); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	return most, all
}

// TestCountsAsUser runs TestCounts_AreLeftToOthers as a user; see TestAsUser.
func TestCountsAsUser(t *testing.T) { asUser(t, "^TestCounts_AreLeftToOthers$") }

// TestCounts_AreLeftToOthers checks that a sandbox leaves some of the objects that the kernel counts, for each user of
// the host or for the machine, to its owner and to other sandboxes.
func TestCounts_AreLeftToOthers(t *testing.T) {
	half := func(what int) int {
		var l unix.Rlimit
		if err := unix.Getrlimit(what, &l); err != nil {
			t.Fatal(err)
		}
		return int(min(l.Max/2, 1<<30))
	}
	o := plant(t, "secret-"+random(t))
	t.Cleanup(func() { _ = exec.Command("rm", "-rf", o.base, o.inTmp).Run() })
	b := start(t, o, sandbox{"root/off", plan.UserRoot, plan.NetOff, false, false, ""})
	for _, c := range []struct {
		what        string
		least, most int // for one user
	}{
		{"terminals", 1, limit.Terminals},
		{"timers", 1, half(unix.RLIMIT_SIGPENDING)},
		{"rights", 1, half(unix.RLIMIT_NOFILE)/escape.Rights + 1},
		{"aio", 0, 0},
	} {
		if most, all := hold(t, b, c.what); most < c.least || most > c.most {
			t.Errorf("%s: a user of the sandbox has %d, all have %d; want %d to %d", c.what, most, all, c.least, c.most)
		}
	}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if err := unix.Sendmsg(p[0], []byte{0}, unix.UnixRights(p[1]), nil, 0); err != nil {
		t.Errorf("the owner cannot pass a descriptor: %v", err)
	}
	session, err := b.Exec(t.Context(), wire.ExecRequest{Cmd: []string{attacker, escape.HoldWord, "aio"}, Dir: "/"})
	if err != nil {
		t.Errorf("cannot start a command in the sandbox: %v", err)
	} else {
		session.Close()
	}
}
