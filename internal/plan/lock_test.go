package plan

import (
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// TestLock_OpensNothingOfTheUser checks which paths a lock opens and closes, and the environment that leads there.
func TestLock_OpensNothingOfTheUser(t *testing.T) {
	t.Parallel()
	c := Config{
		Caller: Caller{UID: 7, GID: 7, Name: "ann", Home: "/opt/ann"}, Tier: TierWorkspace, Confine: ConfineAuto,
		RunDir: "/var/store/sandboxes/x/run", Spec: rootspec.Spec{Bind: "/var/store/sandboxes/x/tree"},
		Places: Places{Closed: []string{"/var/store"}, Read: []string{"/opt/ann/.cargo", "/srv"},
			Write: []string{"/opt/ann/p", "/opt/me/k"}, Homes: []string{"/opt/me", "/"}},
	}
	g, e, err := Decide(c, Facts{Landlock: 7})
	if err != nil {
		t.Fatal(err)
	}
	l := g.Lock
	own := []string{"/var/store/sandboxes/x/tree", "/var/store/sandboxes/x/run/home", "/var/store/sandboxes/x/run/tmp"}
	if !slices.Equal(l.Own, own) || !slices.Equal(l.Closed, []string{"/opt/ann", "/opt/me", "/var/store"}) ||
		!slices.Equal(l.Links, []Link{{".cargo", "/opt/ann/.cargo"}, {"p", "/opt/ann/p"}, {"k", "/opt/me/k"}}) ||
		!l.NoInet {
		t.Errorf("%+v", l)
	}
	for _, p := range slices.Concat(l.System, l.Seen) {
		for _, closed := range []string{"/home", "/root", "/tmp", "/var/tmp", "/run/secrets", "/var/run", "/dev", "/mnt"} {
			if rootspec.Within(closed, p) {
				t.Errorf("%s is open, and with it %s", p, closed)
			}
		}
	}
	for _, want := range []string{"HOME=" + own[1], "TMPDIR=" + own[2]} {
		if !slices.Contains(g.Env, want) {
			t.Errorf("no %s in %q", want, g.Env)
		}
	}
	if len(e.Lacks()) == 0 {
		t.Error("nothing is weak")
	}
	if g.Tell {
		t.Error("refusals are reported without a journal")
	}
	c.Confine = ConfineOff
	if g, _, err := Decide(c, Facts{Landlock: 7}); err != nil || g.Lock != nil || slices.Contains(g.Env, "HOME="+own[1]) {
		t.Errorf("%+v, %v", g, err)
	}
}
