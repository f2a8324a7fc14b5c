package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// diffArgs separates the arguments of diff into states and paths. It returns at least one state.
func diffArgs(args []string, dash int) (states, paths []string, err error) {
	states = args
	if dash >= 0 {
		if dash == 0 {
			return nil, nil, usagef("diff requires the name of a sandbox")
		}
		states, paths = args[:dash], args[dash:]
	} else {
		for i, s := range args {
			if i == 3 || i > 0 && strings.Contains(s, "/") {
				states, paths = args[:i], args[i:]
				break
			}
		}
	}
	if len(states) > 3 {
		return nil, nil, usagef("diff takes two REFs: %q", states[3])
	}
	return states, paths, nil
}

// splitState splits NAME@REF, where NAME@ is the live state. explicit reports whether s has that form; a
// reference can begin with "@", and a moment of a sandbox is NAME@{5m}.
func splitState(s string) (name, ref string, explicit bool) {
	name, ref, explicit = strings.Cut(s, "@")
	if name == "" {
		return s, "", false
	}
	if strings.HasPrefix(ref, "{") {
		ref = "@" + ref
	}
	return name, ref, explicit
}

// diffState is a state of a sandbox; ref "" is the live one.
type diffState struct{ name, ref string }

// diffRequest returns the sandbox and the request that states select: references of the first sandbox, or states of
// two sandboxes.
func diffRequest(
	ctx context.Context, c *client.Client, states []string,
) (name string, req wire.DiffRequest, err error) {
	name, ref, explicit := splitState(states[0])
	from, to := diffState{name, ref}, diffState{name: name}
	// of parses NAME@REF, or a REF of the first sandbox.
	of := func(s string) diffState {
		if other, ref, explicit := splitState(s); explicit {
			return diffState{other, ref}
		}
		return diffState{name, s}
	}
	switch len(states) {
	case 1:
		if ref == "" {
			from.ref = "HEAD"
		}
	case 2:
		second := states[1]
		_, _, whole := splitState(second)
		sandbox := false
		if !whole {
			if sandbox, err = isSandbox(ctx, c, name, second); err != nil {
				return name, req, err
			}
		}
		switch {
		case sandbox && !explicit:
			from, to = diffState{name: name}, diffState{name: second}
		case sandbox:
			to.name = second
		case whole || explicit:
			to = of(second)
		default:
			from.ref = second
		}
	default:
		if explicit {
			return name, req, usagef("diff compares two states: %q", states[2])
		}
		from, to = of(states[1]), of(states[2])
	}
	req = wire.DiffRequest{A: from.ref, B: to.ref}
	switch {
	case from.name != to.name:
		req.Other = to.name
	case from.ref == "":
		return name, req, &usageError{
			msg:  fmt.Sprintf("cannot compare the live state of %s with its own history in this order", tty.Clean(name)),
			hint: "name the snapshot alone: coppice diff NAME REF"}
	}
	return from.name, req, nil
}

// isSandbox reports whether a word is the name of a sandbox, and not a reference to a snapshot of name. A word that
// is both is an error.
func isSandbox(ctx context.Context, c *client.Client, name, word string) (bool, error) {
	if word == "HEAD" || strings.ContainsAny(word, "@~^") {
		return false, nil
	}
	all, err := c.List(ctx)
	if err != nil || !slices.ContainsFunc(all, func(s wire.Sandbox) bool { return s.Name == word }) {
		return false, err
	}
	_, err = c.Show(ctx, name, word)
	switch kind := wireKind(err); {
	case kind == fault.NotFound, kind == fault.Invalid:
		return true, nil
	case err != nil && kind != fault.Ambiguous:
		return false, err
	}
	return false, fault.New(fault.Ambiguous, "%q is a snapshot of sandbox %s and the name of a sandbox", word, name).
		WithHint("for the snapshot: coppice diff %s@%s; for the sandbox: coppice diff %s %s@", name, word, name, word)
}

// wireKind returns the kind of an error of the daemon, and "" for nil.
func wireKind(err error) fault.Kind {
	if err == nil {
		return ""
	}
	return fault.Kind(wireError(err).Kind)
}

// refHint adds to the error of an unknown reference that it may have been meant as a sandbox or as a path.
func refHint(err error, args []string) error {
	if err == nil {
		return nil
	}
	e := wireError(err)
	if e.Kind != string(fault.NotFound) || len(args) < 2 || strings.Contains(e.Hint, "--") {
		return err
	}
	message := e.Message
	if _, _, explicit := splitState(args[1]); !explicit && (len(args) == 2 || strings.Contains(args[2], "/")) {
		message = fmt.Sprintf("%q is neither a sandbox nor a snapshot of %s: %s", args[1], args[0], e.Message)
	}
	hint := `put "--" before paths`
	if e.Hint != "" {
		hint = e.Hint + "; " + hint
	}
	return &fault.Error{Kind: fault.Kind(e.Kind), Message: message, Hint: hint}
}

// repositoryOnly reports whether the form has flags that only a comparison in a repository supports.
func (f gitForm) repositoryOnly() bool { return f.pending || f.color != "" || f.noPager }

// list lists changes of files, one a line, with or without their status.
func (f gitForm) list(w io.Writer, _ tty.Palette, all []wire.Change) error {
	letters := map[string]string{wire.Added: "A\t", wire.Removed: "D\t", wire.Modified: "M\t"}
	for _, c := range all {
		line := tty.Quote(c.Name())
		if f.status {
			line = letters[c.Kind] + line
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
