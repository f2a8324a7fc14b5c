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
	"github.com/coppice-dev/coppice/internal/box/escape"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/limit"
)

// TestInotifyAsUser is TestInotify_IsLeftToTheOwner as a user; see TestAsUser.
func TestInotifyAsUser(t *testing.T) { asUser(t, "^TestInotify_IsLeftToTheOwner$") }

// A user namespace charges its owner, so that a sandbox could take each inotify instance
// that the owner may have, of which 128 are usual.
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
			session, err := b.Exec(t.Context(), wire.ExecRequest{Cmd: []string{attacker, escape.HoldWord}, Dir: "/", Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
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
			var most, all int
			if _, err := fmt.Sscan(out.String(), &most, &all); err != nil {
				t.Fatalf("%q: %v", out.String(), err)
			}
			left := 0
			for ; left < owners/2; left++ {
				fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
				if err != nil {
					break
				}
				defer unix.Close(fd)
			}
			if share := limit.OfHost(int64(owners), limit.Inotify); int64(most) > share || most == 0 {
				t.Errorf("a user of the sandbox has %d instances, and may have %d", most, share)
			}
			if left < owners/4 { // what else runs as the owner has some
				t.Errorf("the sandbox has %d instances of %d, which leaves %d to its owner", all, owners, left)
			}
		})
	}
}
