//go:build linux

package cli_test

import "testing"

// TestGrants_RequireAdmin checks that a token that cannot give grants does not give them to a sandbox that it creates
// either, nor multiplies those of a sandbox by forks.
func TestGrants_RequireAdmin(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	admin, _ := d.token("admin")
	operate, _ := d.token("operate")
	inside, _ := d.token("operate", "a")
	const section = `version: 1\nsecrets: {github: {}}\n`
	for _, x := range []struct {
		path, body, token string
		denied            bool
	}{
		{"/v1/sandboxes", `{"grants":{"github":{}}}`, operate, true},
		{"/v1/sandboxes", `{"policy":[{"level":"user","name":"/p.yaml","text":"` + section + `"}]}`, operate, true},
		{"/v1/sandboxes", `{"policy":[{"level":"flags","name":"--policy","text":"` + section + `"}]}`, operate, true},
		{"/v1/sandboxes", `{"grants":{"github":{}}}`, admin, false},
		{"/v1/sandboxes/a/fork", `{"grants":"reissue"}`, inside, true},
		{"/v1/sandboxes/a/fork", `{"grants":"none","names":["a"]}`, inside, false},
	} {
		code, text := d.text(request{method: "POST", path: x.path, body: x.body, token: x.token})
		if (code == 403) != x.denied || code < 300 {
			t.Errorf("%s %s: %d %s", x.path, x.body, code, text)
		}
	}
	if list, err := d.client.List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
}
