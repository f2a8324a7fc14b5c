package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// shell returns a store, and the Ref of a script.
func shell(script string) (*Command, Ref) {
	return NewCommand([]string{"PATH=/usr/bin:/bin", "V=" + mark}, atNoon), Ref{Argv: []string{"sh", "-c", script}}
}

func TestCommand_ReadsValues(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		`printf %s "$V"`:                        mark,
		`echo "$V"`:                             mark,
		`printf '%s\r\n' "$V"`:                  mark,
		`echo "{\"value\":\"$V\"}"`:             mark,
		`echo "{\"private_key\":\"$V\"}"`:       `{"private_key":"` + mark + `"}`,
		`echo "{$V"`:                            "{" + mark,
		`echo "$V"; echo noise >&2`:             mark,
		`pwd`:                                   "/",
		`test -z "$HOME$USER" && cat && echo 3`: "3", // neither the test's variables nor its input
		`head -c 16384 /dev/zero | tr '\0' x`:   strings.Repeat("x", MaxValue),
	} {
		c, ref := shell(script)
		v, err := c.Get(t.Context(), ref)
		mustBe(t, v, err, want)
	}
	c, ref := shell(`echo "{\"value\":\"$V\",\"expires\":\"2026-11-28T12:00:01Z\",\"user\":\"alice\"}"`)
	v, err := c.Get(t.Context(), ref)
	if v.User != "alice" || !v.Until.Equal(noon.Add(time.Second)) {
		t.Errorf("%q %v", v.User, v.Until)
	}
	mustBe(t, v, err, mark)
	c, ref = shell(`echo "$V"; echo url: x`)
	ref.First = true
	v, err = c.Get(t.Context(), ref)
	mustBe(t, v, err, mark)
}

func TestCommand_UnderstandsAWS(t *testing.T) {
	t.Parallel()
	c, ref := shell(`echo '{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"` + mark + `","SessionToken":"s` + mark +
		`","Expiration":"2026-11-28T12:00:01+00:00"}'`)
	v, err := c.Get(t.Context(), ref)
	if err != nil || v.User != "AKIA" || v.Until.IsZero() {
		t.Errorf("%q %v %v", v.User, v.Until, err)
	}
	mustBe(t, v, err, "AKIA:"+mark+":s"+mark)
	c, ref = shell(`echo '{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"` + mark + `","SessionToken":""}'`)
	v, err = c.Get(t.Context(), ref)
	mustBe(t, v, err, "AKIA:"+mark)
	for answer, want := range map[string]fault.Kind{
		`{"Version":2,"AccessKeyId":"AKIA","SecretAccessKey":"` + mark + `"}`:                                  fault.Version,
		`{"AccessKeyId":"AKIA","SecretAccessKey":"` + mark + `"}`:                                              fault.Version,
		`{"Version":1,"AccessKeyId":"","SecretAccessKey":"` + mark + `"}`:                                      fault.Invalid,
		`{"Version":1,"AccessKeyId":"A","SecretAccessKey":["` + mark + `"]}`:                                   fault.Invalid,
		`{"Version":1,"AccessKeyId":"A"}`:                                                                      fault.Invalid,
		`{"Version":1,"AccessKeyId":"A","SecretAccessKey":"` + mark + `","SessionToken":7}`:                    fault.Invalid,
		`{"Version":1,"AccessKeyId":"A","SecretAccessKey":"` + mark + `","SessionToken":"a\nb"}`:               fault.Invalid,
		`{"Version":1,"AccessKeyId":"A","SecretAccessKey":"` + mark + `","Expiration":"1999-01-01T00:00:00Z"}`: fault.Unavailable,
	} {
		v, err := parseOutput([]byte(answer), false, noon)
		mustFail(t, err, want)
		if v.held() != nil {
			t.Error("a value beside an error")
		}
	}
}

func TestCommand_FailsWithoutTheValue(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]fault.Kind{
		`exit 3`: fault.Unavailable,
		`echo "$V"; echo "token=$V is locked" >&2; exit 1`:         fault.Unavailable,
		`echo "$V"; echo "$V" >&2; exit 1`:                         fault.Unavailable,
		`echo "{\"value\":\"$V\"}"; echo "got \"$V\"" >&2; exit 1`: fault.Unavailable,
		`echo "$V"; kill -9 $$`:                                    fault.Unavailable,
		`true`:                                                     fault.Invalid,
		`echo`:                                                     fault.Invalid,
		`echo "$V"; echo "$V"`:                                     fault.Invalid,
		`printf '%s\0' "$V"`:                                       fault.Invalid,
		`while :; do echo "$V"; done`:                              fault.TooLarge,
		`trap '' PIPE; while :; do echo "$V"; done`:                fault.TooLarge,
		`head -c 65537 /dev/zero`:                                  fault.TooLarge,
		`head -c 20000 /dev/zero | tr '\0' x`:                      fault.TooLarge,
		`echo "{\"value\":[\"$V\"]}"`:                              fault.Invalid,
		`echo "{\"value\":\"$V\",\"expires\":\"$V\"}"`:             fault.Invalid,
		`echo "{\"value\":\"$V\",\"expires\":1}"`:                  fault.Unavailable,
	} {
		c, ref := shell(script)
		_, err := c.Get(t.Context(), ref)
		mustFail(t, err, want)
	}
	c, _ := shell("")
	for program, want := range map[string]fault.Kind{
		"no-such-program": fault.NotFound, "/nonexistent/x": fault.NotFound, "./x": fault.Invalid, "a/b": fault.Invalid,
		write(t, "#!/bin/sh", 0o600): fault.Denied, "": fault.NotFound,
	} {
		_, err := c.Get(t.Context(), Ref{Argv: []string{program, mark}})
		mustFail(t, err, want)
	}
	_, err := c.Get(t.Context(), Ref{})
	mustFail(t, err, fault.Invalid)
}

func TestCommand_ReportsFirstLine(t *testing.T) {
	t.Parallel()
	c, ref := shell(`printf '\n\033[31mnot  logged\tin\a\033[0m\nsecond\n' >&2; exit 4`)
	_, err := c.Get(t.Context(), ref)
	if err == nil || !strings.HasSuffix(err.Error(), "sh failed: exit status 4: [31mnot logged in[0m") {
		t.Errorf("%q", err)
	}
	c, ref = shell(`head -c 100000 /dev/zero | tr '\0' y >&2; exit 4`)
	if _, err = c.Get(t.Context(), ref); err == nil || len(err.Error()) > 300 {
		t.Errorf("%q", err)
	}
}

func TestCommand_KillsTheGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, patience := range map[string]time.Duration{"timeout": 300 * time.Millisecond, "cancel": time.Hour} {
		pids := filepath.Join(dir, name)
		c, ref := shell(fmt.Sprintf(`sleep 1000 & echo $! >%s.new; mv %s.new %s; echo "$V"; wait`, pids, pids, pids))
		c.most = patience
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { _, err := c.Get(ctx, ref); done <- err }()
		if name == "cancel" {
			await(t, func() bool { _, err := os.Stat(pids); return err == nil })
			cancel()
			mustFail(t, <-done, fault.Cancelled)
		} else {
			mustFail(t, <-done, fault.Timeout)
		}
		var pid int
		b, err := os.ReadFile(pids)
		if os.IsNotExist(err) {
			continue // killed before it had started the other process
		}
		if _, err := fmt.Sscan(string(b), &pid); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return gone(pid) })
	}
}

func TestCommand_KillsWhatKeepsTheOutput(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pid")
	c, ref := shell(fmt.Sprintf(`sleep 1000 & echo $! >%s; echo "$V"`, pids))
	_, err := c.Get(t.Context(), ref)
	mustFail(t, err, fault.Unavailable)
	var pid int
	b, err := os.ReadFile(pids)
	if err == nil {
		_, err = fmt.Sscan(string(b), &pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return gone(pid) })
}

// gone reports whether a process has exited, if it was reaped or not.
func gone(pid int) bool {
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

// await waits for a condition.
func await(t testing.TB, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(2 * time.Minute); !is(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("it did not happen")
		}
	}
}
