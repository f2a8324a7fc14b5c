package daemon

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/plan"
)

func TestIdentified_TakesTheEntryOrTheEnvironment(t *testing.T) {
	const passwd = "root:x:0:0:root:/root:/bin/bash\nann:x:1001:1001::/home/ann:/bin/zsh\n1000:*:1000:1000:container user:/:/bin/sh\n"
	for _, c := range []struct {
		uid  uint32
		home string
		want plan.Caller
	}{
		{1001, "/elsewhere", plan.Caller{UID: 1001, Name: "ann", Home: "/home/ann", Shell: "/bin/zsh"}},
		{4242, "/home/agent/", plan.Caller{UID: 4242, Home: "/home/agent"}},
		{1000, "/home/agent", plan.Caller{UID: 1000, Name: "1000", Home: "/home/agent", Shell: "/bin/sh"}},
		{1000, "", plan.Caller{UID: 1000, Name: "1000", Home: "/", Shell: "/bin/sh"}},
		{4242, "relative", plan.Caller{UID: 4242}},
		{4242, "", plan.Caller{UID: 4242}},
	} {
		if got := identified(plan.Caller{UID: c.uid}, []byte(passwd), c.home); got != c.want {
			t.Errorf("uid %d, HOME=%q: %+v, want %+v", c.uid, c.home, got, c.want)
		}
	}
}
