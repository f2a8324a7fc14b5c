package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

func TestCommand_ReturnsOutputAndExitCode(t *testing.T) {
	t.Parallel()
	sb := sandbox(t)
	out, err := sb.Command(t.Context(), "echo", "a b", "c").Output()
	if err != nil || string(out) != "a b c\n" {
		t.Errorf("%q, %v", out, err)
	}
	cmd := sb.Shell(t.Context(), "echo out; echo err >&2; exit 3")
	out, err = cmd.Output()
	var exit *client.ExitError
	if !errors.As(err, &exit) || exit.Code != 3 || string(exit.Stderr) != "err\n" || err.Error() != "exit status 3" ||
		string(out) != "out\n" {
		t.Errorf("%q, %v", out, err)
	}
	if cmd.Exit == nil || cmd.Exit.Code != 3 || cmd.Exit.Head == "" {
		t.Errorf("%+v", cmd.Exit)
	}
	both, err := sb.Shell(t.Context(), "echo one; sleep 0.1; echo two >&2; sleep 0.1; echo three").CombinedOutput()
	if err != nil || string(both) != "one\ntwo\nthree\n" {
		t.Errorf("%q, %v", both, err)
	}
	err = sb.Command(t.Context(), "no-such-program").Run()
	if !errors.As(err, &exit) || exit.Code != 127 || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("%v", err)
	}
	err = sb.Shell(t.Context(), "kill -9 $$").Run()
	if !errors.As(err, &exit) || exit.Signal != "KILL" || err.Error() != "signal: KILL" {
		t.Errorf("%v", err)
	}
}

func TestCommand_PassesEnvDirStdinAndTTY(t *testing.T) {
	t.Parallel()
	sb := sandbox(t)
	cmd := sb.Shell(t.Context(), `echo "$GREETING"; pwd; cat`)
	cmd.Env, cmd.Dir, cmd.Stdin = []string{"GREETING=hello there"}, "/usr/bin", strings.NewReader("from outside\n")
	out, err := cmd.Output()
	if err != nil || string(out) != "hello there\n/usr/bin\nfrom outside\n" {
		t.Errorf("%q, %v", out, err)
	}
	term := sb.Shell(t.Context(), "stty size")
	term.TTY = &wire.Size{Cols: 91, Rows: 17}
	if out, err = term.Output(); err != nil || string(out) != "17 91\r\n" {
		t.Errorf("%q, %v", out, err)
	}
	slow := sb.Command(t.Context(), "sleep", "1000")
	slow.Timeout = 100 * time.Millisecond
	var exit *client.ExitError
	if err := slow.Run(); !errors.As(err, &exit) || !exit.TimedOut || exit.Code != 124 {
		t.Errorf("%v", err)
	}
}

func TestCommandPipes_StreamBothDirections(t *testing.T) {
	t.Parallel()
	sb := sandbox(t)
	cmd := sb.Command(t.Context(), "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if id, pid := cmd.ID(); id == "" || pid <= 1 {
		t.Errorf("it is %q, %d", id, pid)
	}
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	sent := make(chan error, 1)
	go func() {
		_, err := in.Write(want)
		sent <- errors.Join(err, in.Close())
	}()
	got, err := io.ReadAll(out)
	if err := errors.Join(err, <-sent, cmd.Wait()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes returned of %d: %v", len(got), len(want), err)
	}
}

// TestCommandPipes_CloseOnExit checks that a write to a command's standard input fails once the command has exited.
func TestCommandPipes_CloseOnExit(t *testing.T) {
	t.Parallel()
	sb := sandbox(t)
	cmd := sb.Command(t.Context(), "true")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Start(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(make([]byte, 1<<20)); err == nil {
		t.Error("a write after the exit succeeds")
	}
}

func TestCommand_EndsOnSignalOrCancel(t *testing.T) {
	t.Parallel()
	sb := sandbox(t)
	cmd := sb.Shell(t.Context(), "trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Signal("INT"); err != nil {
		t.Fatal(err)
	}
	var exit *client.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Code != 7 {
		t.Errorf("%v", err)
	}
	if err := cmd.Signal("INT"); !client.IsKind(err, client.KindNotFound) {
		t.Errorf("%v", err)
	}

	for name, line := range map[string]string{"exits on TERM": "sleep 1000",
		"ignores TERM": "trap '' TERM; while :; do sleep 0.05; done"} {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := sb.Shell(ctx, line)
		cmd.WaitDelay = 200 * time.Millisecond
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := cmd.Wait(); !errors.Is(err, context.Canceled) || !client.IsKind(err, client.KindCancelled) {
			t.Errorf("%s: %v", name, err)
		}
		st, err := sb.Status(t.Context())
		if err != nil || st.Sandbox.Procs != 0 {
			t.Errorf("%s: %d processes are left, %v", name, st.Sandbox.Procs, err)
		}
		if err := sb.Command(ctx, "true").Run(); !client.IsKind(err, client.KindCancelled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCommand_RejectsMisuse(t *testing.T) {
	t.Parallel()
	sb := sandbox(t)
	cmd := sb.Command(t.Context(), "true")
	if err := cmd.Wait(); !client.IsKind(err, client.KindInvalid) {
		t.Errorf("%v", err)
	}
	if err := cmd.Signal("INT"); !client.IsKind(err, client.KindInvalid) {
		t.Errorf("%v", err)
	}
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	if err := cmd.Run(); !client.IsKind(err, client.KindInvalid) {
		t.Errorf("%v", err)
	}
	cmd = sb.Command(t.Context(), "true")
	cmd.Stdout = io.Discard
	if _, err := cmd.Output(); !client.IsKind(err, client.KindInvalid) {
		t.Errorf("%v", err)
	}
	if _, err := cmd.StdoutPipe(); !client.IsKind(err, client.KindInvalid) {
		t.Errorf("%v", err)
	}
	if err := daemon.Sandbox("nobody").Command(t.Context(), "true").Start(); !client.IsKind(err, client.KindNotFound) {
		t.Errorf("%v", err)
	}
}
