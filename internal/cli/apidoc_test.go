//go:build linux

package cli_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestAPIDocument_CurlStepsWork runs the first steps of docs/api.md as written, except for the port. They must print
// the lines of the document in order, in which "…" matches anything.
func TestAPIDocument_CurlStepsWork(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skipf("needs curl: %v", err)
	}
	d := newDesk(t)
	d.run("rm", sandbox) // starts a daemon that listens only on its socket
	steps := stepsOf(t, "../../docs/api.md", "## Ten minutes with curl")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	script, port := "", freePort(t)
	for i, s := range steps {
		script += fmt.Sprintf("%s\necho; echo '=== %d'\n", strings.ReplaceAll(s.code, "7070", port), i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Env = append(d.env, "HOME="+me.HomeDir) // the home of the user in the sandbox
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %s%s", err, out, stderr.String())
	}
	rest := string(out)
	for i, s := range steps {
		got, after, ok := strings.Cut(rest, fmt.Sprintf("=== %d\n", i))
		if !ok {
			t.Fatalf("the script exited in step %d: %s%s", i, got, stderr.String())
		}
		rest = after
		lines := strings.Split(got, "\n")
		for _, want := range s.want {
			at := slices.IndexFunc(lines, want.MatchString)
			if at < 0 {
				t.Errorf("step %d prints\n%s\nwant %s\n%s", i, got, want, stderr.String())
				break
			}
			lines = lines[at+1:]
		}
	}
}

// lesson is a block of commands, with the lines that they print.
type lesson struct {
	code string
	want []*regexp.Regexp
}

var block = regexp.MustCompile("(?s)```(sh|text)\n(.*?)```")

// stepsOf returns the steps below a heading.
func stepsOf(t *testing.T, file, heading string) (steps []lesson) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(b), heading+"\n")
	section, _, more := strings.Cut(section, "\n## ")
	if !ok || !more {
		t.Fatalf("%s has no section %q", file, heading)
	}
	for _, m := range block.FindAllStringSubmatch(section, -1) {
		if m[1] == "sh" {
			steps = append(steps, lesson{code: m[2]})
			continue
		}
		s := &steps[len(steps)-1]
		for _, line := range strings.Split(strings.TrimSpace(m[2]), "\n") {
			s.want = append(s.want, regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")+"$"))
		}
	}
	if len(steps) < 5 {
		t.Fatalf("%s has only %d steps", file, len(steps))
	}
	return steps
}

// freePort returns a port on which no process listens.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
