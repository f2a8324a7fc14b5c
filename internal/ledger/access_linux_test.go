package ledger

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// TestLedger_RegainsAccess sets the modes that a process of a locked workspace can set, if it runs as the daemon's
// user: the ledger of its own sandbox, or the whole ledger, is closed to the daemon.
func TestLedger_RegainsAccess(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	if os.Geteuid() == 0 { // no mode closes a file to root
		tmp := t.TempDir()
		if err := errors.Join(os.Chmod(filepath.Dir(tmp), 0o711), os.Chown(tmp, nobody, nobody)); err != nil {
			t.Skip("needs real-root: to run as another user:", err)
		}
		c := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), "TMPDIR="+tmp)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const evil, other format.Sandbox = "000000000001", "000000000002"
	for _, closed := range []string{"", "lock", "key", "log", "log/intake", "log/heads", "log/hashes", "log/checkpoint",
		"log/keys", "sandbox", "sandbox/" + string(evil), "sandbox/" + string(evil) + "/" + pad(1) + plainEnd, "blobs"} {
		for _, mode := range []fs.FileMode{0, 0o400, 0o500, 0o200} {
			dir := filepath.Join(t.TempDir(), "ledger")
			n := 0
			write := func(l *Ledger) {
				t.Helper()
				for _, id := range []format.Sandbox{evil, other} {
					if _, err := l.Append(t.Context(), draft(id, n)); err != nil {
						t.Errorf("%q, %o, %s: %v", closed, mode, id, err)
					}
					n++
				}
			}
			l, _ := opened(t, dir, Options{})
			write(l)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			for _, running := range []bool{true, false} {
				if l, _ = opened(t, dir, Options{}); running {
					write(l)
				}
				if err := os.Chmod(filepath.Join(dir, closed), mode); err != nil {
					t.Fatal(err)
				}
				if running && closed != "" && closed != "lock" && closed != "key" {
					write(l)
				}
				if err := l.Close(); err != nil {
					t.Errorf("%q, %o: close: %v", closed, mode, err)
				}
				if l, _ = opened(t, dir, Options{}); l == nil {
					t.Fatalf("%q, %o: not opened", closed, mode)
				}
				write(l)
				if err := l.Close(); err != nil {
					t.Errorf("%q, %o: close: %v", closed, mode, err)
				}
			}
			l, _ = opened(t, dir, Options{})
			if err := l.Remove(t.Context(), evil); err != nil {
				t.Errorf("%q, %o: %v", closed, mode, err)
			}
			if err := l.Close(); err != nil {
				t.Errorf("%q, %o: close: %v", closed, mode, err)
			}
		}
	}
}
