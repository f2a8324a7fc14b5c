package repo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/undo"
)

// desk is a temporary bare repository of Coppice: new objects are in it, the user's are borrowed, and only its own
// configuration, hooks, attributes, references and replacements apply. Its HEAD names no commit, so no attributes are
// read from one.
type desk struct {
	git    *Git
	dir    string
	format Format
	limits Limits
}

// desk creates a desk. The caller must close it, which removes it with all objects that were not imported.
func (r *Repo) desk() (d *desk, err error) {
	dir, err := os.MkdirTemp(r.opt.Scratch, "desk-")
	if err != nil {
		return nil, fault.Wrap(err, "create a scratch repository")
	}
	var cleanup undo.Stack
	defer cleanup.Run(&err)
	cleanup.Push(func() error { return os.RemoveAll(dir) })
	for _, sub := range []string{"objects/info", "objects/pack", "refs/heads", "info"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fault.Wrap(err, "create a scratch repository")
		}
	}
	files := map[string]string{
		"HEAD":                    "ref: refs/heads/none\n",
		"config":                  deskConfig(r.Format),
		"objects/info/alternates": string(quote(filepath.Join(r.Common, "objects"))) + "\n",
	}
	if r.Shallow {
		cut, err := os.ReadFile(filepath.Join(r.Common, "shallow"))
		if err != nil {
			return nil, fault.Wrap(err, "read the shallow boundary")
		}
		files["shallow"] = string(cut)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, fault.Wrap(err, "create a scratch repository")
		}
	}
	cleanup.Release()
	return &desk{git: r.git, dir: dir, format: r.Format, limits: r.opt.Limits}, nil
}

func deskConfig(f Format) string {
	if f == SHA256 {
		return "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	return "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
}

// close removes the desk.
func (d *desk) close(errp *error) {
	if err := os.RemoveAll(d.dir); err != nil && *errp == nil {
		*errp = fault.Wrap(err, "remove the scratch repository")
	}
}

// run runs git at the desk, within the limits for data of a sandbox.
func (d *desk) run(ctx context.Context, c call) ([]byte, error) {
	c.env = append(deskEnv(d.dir), c.env...)
	c.dir, c.memory, c.cpu = d.dir, d.limits.Memory, d.limits.cpu()
	return d.git.run(ctx, c)
}

// oid runs git at the desk, and returns the object ID that it prints.
func (d *desk) oid(ctx context.Context, c call) (OID, error) {
	out, err := d.run(ctx, c)
	if err != nil {
		return "", err
	}
	return ParseOID(strings.TrimSpace(string(out)))
}

// tree returns the tree of a commit, or of another object that has one.
func (d *desk) tree(ctx context.Context, of OID) (OID, error) {
	id, err := d.oid(ctx, call{args: []string{"rev-parse", "-q", "--verify", "--end-of-options", string(of) + "^{tree}"}})
	return id, fault.Wrap(err, "find the tree of %s", of)
}

// hold writes an object and returns its ID.
func (d *desk) hold(ctx context.Context, kind string, content []byte) (OID, error) {
	id, err := d.oid(ctx,
		call{args: []string{"hash-object", "-t", kind, "-w", "--stdin"}, stdin: bytes.NewReader(content)})
	return id, fault.Wrap(err, "write a %s", kind)
}

// quote quotes a path for git's list files and fast-import: in double quotes, with escapes. Every byte is preserved.
func quote(p string) []byte {
	out := []byte{'"'}
	for i := range len(p) {
		switch c := p[i]; {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c < ' ' || c >= 0x7f:
			out = fmt.Appendf(out, "\\%03o", c)
		default:
			out = append(out, c)
		}
	}
	return append(out, '"')
}
