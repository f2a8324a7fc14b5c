//go:build linux && (amd64 || arm64)

package box_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/internal/plan"
)

func TestShiftedIDs(t *testing.T) {
	if !caller().Root {
		t.Skip("needs real-root: only root can shift ids")
	}
	b := tier.Start(t)
	if b.Enforced.State("user") != plan.On {
		log, _ := os.ReadFile(b.Config.RunDir + "/keeper.log")
		t.Fatalf("%+v\n%s", b.Enforced, log)
	}
	r := b.Sh(t,
		"echo root > /etc/new; chown 33:33 /etc/new; stat -c %u:%g /etc/new /etc/passwd /usr/bin/env; echo more >> "+
			"/etc/passwd; cat /proc/self/uid_map; sleep 30 >/dev/null 2>&1 &")
	if !strings.HasPrefix(r.Stdout, "33:33\n0:0\n0:0\n") || r.Stderr != "" {
		t.Errorf("%+v", r)
	}
	t.Log(r.Stdout)
	for _, o := range b.Config.Spec.Overlays {
		if o.Target != "/etc" {
			continue
		}
		for name, uid := range map[string]uint32{"new": 33, "passwd": 0} {
			var st syscall.Stat_t
			if err := syscall.Stat(o.Upper+"/"+name, &st); err != nil || st.Uid != uid {
				t.Errorf("%s is stored with owner %d, %v", name, st.Uid, err)
			}
		}
	}
}
