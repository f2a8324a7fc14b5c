package mcpapi

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

const (
	// maxArg is the length of the longest command that is passed to a shell as an argument, in bytes. The kernel
	// refuses arguments of 128 KiB (MAX_ARG_STRLEN).
	maxArg = 100 << 10
	// fromStdin makes a shell execute its stdin, with no other input.
	fromStdin = `eval "exec </dev/null
$(cat)"`
	// maxLabel is the maximum size of a command in its snapshot's message, in bytes.
	maxLabel = 1 << 10
	// notFound is the exit code for a missing program.
	notFound = 127
	// termGrace is the time between SIGTERM and SIGKILL for a cancelled command, and killGrace the time limit for
	// its exit after that.
	termGrace = 2 * time.Second
	killGrace = 5 * time.Second
)

type execIn struct {
	at
	Cmd       string `json:"cmd" jsonschema:"the command, run by bash -lc (sh -lc without bash); its stdin is empty"`
	Dir       string `json:"dir,omitempty" jsonschema:"absolute path of the directory to run it in; default: the user's home"`
	TimeoutMS int64  `json:"timeout_ms,omitempty" jsonschema:"timeout in milliseconds, with exit code 124; default: no limit"`
	Combined  bool   `json:"combined,omitempty" jsonschema:"merge stderr into stdout, in order"`
}

type execOut struct {
	Exit          int    `json:"exit" jsonschema:"exit code; 124 after a timeout, 128+n after signal n"`
	Signal        string `json:"signal,omitempty" jsonschema:"the signal that ended it"`
	TimedOut      bool   `json:"timed_out,omitempty" jsonschema:"it exceeded timeout_ms"`
	Limit         string `json:"limit,omitempty" jsonschema:"the limit of the sandbox that ended it: time, with exit code 124, or output, with 153"`
	Stdout        string `json:"stdout" jsonschema:"its stdout: at most 64 KiB, from the beginning and the end; control bytes and invalid UTF-8 are escaped"`
	Stderr        string `json:"stderr" jsonschema:"its stderr, likewise"`
	StdoutOmitted int64  `json:"stdout_omitted,omitempty" jsonschema:"bytes of stdout omitted"`
	StderrOmitted int64  `json:"stderr_omitted,omitempty" jsonschema:"bytes of stderr omitted"`
	Node          string `json:"node" jsonschema:"the snapshot after the command; the old HEAD if nothing changed"`
	Head          string `json:"head" jsonschema:"the snapshot that the sandbox is at"`
	Changed       bool   `json:"changed" jsonschema:"it changed something"`
	Paths         int    `json:"paths" jsonschema:"how many paths it changed"`
}

func (s *server) addExec(m *mcp.Server) {
	add(s, m, tool{name: "exec", title: "Run a command", destroys: true, open: true,
		about: "Run a shell command in the sandbox and wait until it exits. Its changes become a snapshot, so that they " +
			"can be undone with checkout. A failing command is a result with its exit code. " +
			"Long outputs are cut in the middle."}, exec)
}

// exec runs a command in a login shell.
func exec(ctx context.Context, c *call, in execIn) (execOut, string, error) {
	switch {
	case in.Cmd == "":
		return execOut{}, "", fault.New(fault.Invalid, "exec requires a command").WithHint(`send it as "cmd"`)
	case strings.ContainsRune(in.Cmd, 0):
		return execOut{}, "", fault.New(fault.Invalid, "invalid command: must not contain a NUL byte")
	case in.TimeoutMS < 0:
		return execOut{}, "", fault.New(fault.Invalid, "invalid timeout_ms %d: must not be negative", in.TimeoutMS).
			WithHint("omit timeout_ms for no limit")
	}
	why := ""
	for _, shell := range []string{"bash", "sh"} {
		req := wire.ExecRequest{Cmd: []string{shell, "-lc", in.Cmd}, Dir: in.Dir, TimeoutMS: in.TimeoutMS,
			Label: label(in.Cmd)}
		var stdout, stderr excerpt
		st := client.Streams{Stdout: io.MultiWriter(&stdout, c.beat), Stderr: io.MultiWriter(&stderr, c.beat)}
		if in.Combined {
			req.Cmd[2] = "exec 2>&1\n" + in.Cmd
		}
		if script := req.Cmd[2]; len(script) > maxArg {
			req.Cmd[2], req.Stdin, st.Stdin = fromStdin, true, strings.NewReader(script)
		}
		var dropped int64
		st.Dropped = func(n int64) { dropped += n }
		exit, err := c.run(ctx, req, st)
		switch {
		case err != nil:
			return execOut{}, "", err
		case exit.Message != "" && exit.Code == notFound:
			why = exit.Message
			continue
		case exit.Message != "" && exit.Limit == "":
			return execOut{}, "", fault.New(fault.Invalid, "%s", exit.Message)
		}
		stdout.total += dropped // it is unknown where in the output they are missing
		res, text := outcome(exit, &stdout, &stderr)
		return res, text, nil
	}
	return execOut{}, "", fault.New(fault.NotFound, "cannot start bash or sh: %s", why).
		WithHint("if they were removed, rewind with checkout; if dir does not exist, send another one")
}

// label returns the message of a command's snapshot.
func label(cmd string) string {
	if len(cmd) <= maxLabel {
		return cmd
	}
	return strings.ToValidUTF8(cmd[:maxLabel], "") + "..."
}

// run runs a command, and ends it when ctx ends.
func (c *call) run(ctx context.Context, req wire.ExecRequest, st client.Streams) (wire.Exit, error) {
	outlives, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	signals, ended := make(chan string), make(chan struct{})
	st.Signals = signals
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-ended:
		case <-ctx.Done():
			if !endBy("TERM", termGrace, signals, ended) && !endBy("KILL", killGrace, signals, ended) {
				cancel()
			}
		}
	})
	exit, err := c.client.Exec(outlives, c.sandbox, req, st)
	close(ended)
	watcher.Wait()
	switch {
	case ctx.Err() != nil && err == nil:
		return exit,
			fault.New(fault.Cancelled,
				"the call was cancelled, which stopped the command; its changes are in snapshot %s", exit.Snapshot)
	case ctx.Err() != nil:
		return exit, fault.New(fault.Cancelled, "the call was cancelled; the command may still be running").Because(err)
	}
	return exit, err
}

// endBy sends a signal, and reports whether the command exited within grace.
func endBy(signal string, grace time.Duration, signals chan<- string, ended <-chan struct{}) bool {
	late, stop := context.WithTimeout(context.Background(), grace)
	defer stop()
	select {
	case signals <- signal:
	case <-ended:
		return true
	case <-late.Done():
	}
	select {
	case <-ended:
		return true
	case <-late.Done():
		return false
	}
}

// outcome returns the result of a command, structured and as text.
func outcome(exit wire.Exit, stdout, stderr *excerpt) (execOut, string) {
	out, outText, outLess := section("stdout", stdout)
	err, errText, errLess := section("stderr", stderr)
	res := execOut{
		Exit: exit.Code, Signal: exit.Signal, TimedOut: exit.TimedOut, Limit: exit.Limit, Node: exit.Snapshot,
		Head: exit.Head, Changed: exit.Changed, Paths: exit.Paths,
		Stdout: out, Stderr: err, StdoutOmitted: outLess, StderrOmitted: errLess,
	}
	text := fmt.Sprintf("exit code %d", exit.Code)
	switch {
	case exit.Limit != "":
		text += " (" + line(exit.Message) + ")"
	case exit.TimedOut:
		text += " (it timed out)"
	case exit.Signal != "":
		text += " (signal " + line(exit.Signal) + ")"
	}
	if exit.Changed {
		text += fmt.Sprintf("; %s changed, snapshot %s", tty.Count(exit.Paths, "path"), exit.Snapshot)
	} else {
		text += "; nothing changed, HEAD is still " + exit.Snapshot
	}
	return res, text + outText + errText
}

// section returns an output as one text, and as a section of a text for a model.
func section(name string, e *excerpt) (all, text string, omitted int64) {
	head, tail, omitted := e.text()
	if omitted == 0 {
		if head+tail == "" {
			return "", "", 0
		}
		return head + tail, "\n--- " + name + "\n" + head + tail, 0
	}
	gap := fmt.Sprintf("\n[... %s omitted ...]\n", size(omitted))
	return head + gap + tail,
		fmt.Sprintf(
			"\n--- %s (%s of %s are omitted; to see them, run it again with its output in a file and read parts of the file "+
				"with grep, head, tail or sed -n)\n%s%s%s",
			name, size(omitted), size(e.total), head, gap, tail), omitted
}
