package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) cp() *cobra.Command {
	var opt copyOptions
	cmd := &cobra.Command{
		Use: "cp NAME:PATH DST | SRC NAME:PATH [flags]", Short: "Copy files between a sandbox and the host",
		GroupID: groupBox,
		Long: `Copy a file or a directory, recursively, between a sandbox and the host. One
side is NAME:PATH. The other is a path on the host, or "-": a tar archive on
standard input (optionally compressed by gzip or zstd), which is extracted to
PATH, or on standard output.

If DST is an existing directory, SRC is copied into it; otherwise SRC is copied
to DST. SRC/. copies the contents of a directory. In the sandbox, missing parent
directories are created. Copied files belong to the sandbox's user, or to you on
the host, without setuid and setgid bits. A copy into a sandbox takes one
snapshot.`,
		Example: `  coppice cp ./src box:/work
  coppice cp box:/work/dist/. ./dist
  coppice cp --at HEAD~3 box:/etc/hosts -`,
		Args:              between(2, 2, "a source and a destination"),
		ValidArgsFunction: a.copyArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := parseSide(args[0]), parseSide(args[1])
			switch {
			case from.box == "" && to.box == "":
				return usagef("neither %q nor %q is in a sandbox: one must be NAME:PATH", args[0], args[1])
			case from.box != "" && to.box != "":
				return usagef("cannot copy between sandboxes: copy from %s to a local directory first", from.box)
			case to.box != "" && opt.at != "":
				return usagef("cannot use --at when copying into a sandbox: snapshots are immutable")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			t := &transfer{a: a, c: c, opt: opt}
			switch {
			case from.box != "" && to.path == "-":
				return t.toStdout(ctx, from)
			case from.box != "":
				err = t.out(ctx, from, to.path)
			case from.path == "-":
				err = t.fromStdin(ctx, to)
			default:
				err = t.in(ctx, from.path, to)
			}
			a.leftOut(t.res.LeftOut)
			if err != nil {
				return err
			}
			return a.print(t.res, func(io.Writer) error {
				a.note("copied %s, %s", tty.Count(int(t.res.Files), "file"), tty.Bytes(t.res.Bytes))
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&opt.at, "at", "", "copy from snapshot `REF` instead of the live files")
	must(cmd.RegisterFlagCompletionFunc("at", a.refOf))
	f.BoolVarP(&opt.follow, "follow-link", "L", false, "follow SRC if it is a symbolic link")
	f.BoolP("recursive", "r", true, "accepted for compatibility; directories are always copied recursively")
	return cmd
}

type copyOptions struct {
	at     string
	follow bool
}

// side is one argument of cp: a local path, or one in a sandbox.
type side struct {
	box  string // "" for a local path
	path string
}

// parseSide distinguishes NAME:PATH from a local path, which has a slash before its colon, or is a drive of Windows.
func parseSide(arg string) side {
	name, p, ok := strings.Cut(arg, ":")
	if !ok || name == "" || name[0] == '.' || strings.ContainsAny(name, `/\`) || runtime.GOOS == "windows" &&
		len(name) == 1 {
		return side{path: arg}
	}
	if p == "" {
		p = "/"
	}
	return side{box: name, path: p}
}

// copyArgs completes the names of sandboxes, with files beside them.
func (a *app) copyArgs(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
	if len(args) >= 2 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := a.names(0)(cmd, nil, part)
	var out []string
	for _, n := range names {
		if strings.HasPrefix(n, part) {
			out = append(out, n+":")
		}
	}
	if len(out) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return out, cobra.ShellCompDirectiveNoSpace
}

// leftOut warns of the first skipped files.
func (a *app) leftOut(list []string) {
	const most = 20
	a.warn(list[:min(len(list), most)])
	if more := len(list) - most; more > 0 {
		a.warn([]string{fmt.Sprintf("%d more files were skipped or changed; use --json for the list", more)})
	}
}

// transfer is one run of cp.
type transfer struct {
	a   *app
	c   *client.Client
	opt copyOptions
	res wire.UnpackResult
}

// source is the path to copy: of a directory only the content, if the path ends in "/.".
type source struct {
	path    string
	content bool
}

func parseSource(p string) source {
	return source{path: p, content: path.Base(strings.TrimRight(p, "/")) == "." || strings.HasSuffix(p, "/.")}
}

// baseOf returns the name that the copy of a path gets in a directory, "" for the root.
func baseOf(p string) string {
	b := path.Base(path.Clean("/" + filepath.ToSlash(p)))
	if b == "/" {
		return ""
	}
	return b
}

// Copying into a sandbox.

// in copies a local path into a sandbox.
func (t *transfer) in(ctx context.Context, from string, to side) error {
	src := parseSource(filepath.ToSlash(from))
	look := os.Lstat
	if t.opt.follow || src.content || strings.HasSuffix(from, "/") {
		look = os.Stat
	}
	st, err := look(from)
	if err != nil {
		return fault.New(fault.KindOf(err), "read %q", from).Because(err).WithHint("check the path: ls -l")
	}
	abs, err := filepath.Abs(from) // gives "." a name
	if err != nil {
		return fault.Wrap(err, "find %q", from)
	}
	dst, there, err := t.stat(ctx, to, true)
	if err != nil {
		return err
	}
	switch {
	case st.IsDir() && there && dst.Type != wire.FileDir:
		return fault.New(fault.Conflict, "%q in %s is not a directory", to.path, to.box).
			WithHint("choose another destination, or remove it first")
	case st.IsDir():
		target := to.path
		if there && !src.content {
			target = path.Join("/", to.path, baseOf(abs))
		}
		return t.send(ctx, abs, to.box, target, "")
	case src.content || !there && strings.HasSuffix(to.path, "/"):
		return fault.New(fault.Invalid, "%q is not a directory", from).
			WithHint("remove the trailing slash, or create the directory first")
	case there && dst.Type == wire.FileDir:
		return t.sendFile(ctx, abs, st, to.box, path.Join("/", to.path), baseOf(abs))
	}
	return t.sendFile(ctx, abs, st, to.box, path.Dir(path.Clean("/"+to.path)), path.Base(to.path))
}

// stat looks up the destination in a sandbox.
func (t *transfer) stat(ctx context.Context, s side, follow bool) (info wire.FileInfo, there bool, err error) {
	info, err = t.c.Stat(ctx, s.box, s.path, client.FileOptions{At: t.opt.at, Follow: follow})
	if client.IsKind(err, client.KindNotFound) {
		// The sandbox itself, or the snapshot, may be missing.
		if _, rerr := t.c.Stat(ctx, s.box, "/", client.FileOptions{At: t.opt.at}); rerr != nil {
			return info, false, rerr
		}
		return info, false, nil
	}
	return info, err == nil, err
}

// sendFile copies one file, or link, to dir/name.
func (t *transfer) sendFile(ctx context.Context, from string, st fs.FileInfo, box, dir, name string) error {
	if !st.Mode().IsRegular() {
		return t.send(ctx, from, box, dir, name)
	}
	f, err := os.Open(from)
	if err != nil {
		return fault.Wrap(err, "read %q", from)
	}
	defer f.Close()
	mode := uint32(st.Mode().Perm())
	info, err := t.c.WriteFile(ctx, box, path.Join(dir, name), f, wire.WriteOptions{Mode: &mode})
	t.res.Files, t.res.Bytes = 1, info.Size
	return err
}

// send copies a tree as an archive: the content of a directory into dir, or a single file as dir/name.
func (t *transfer) send(ctx context.Context, from, box, dir, name string) error {
	pr, pw := io.Pipe()
	type packed struct {
		skipped []string
		err     error
	}
	done := make(chan packed, 1)
	go func() {
		skipped, err := pack(from, name, pw)
		_ = pw.CloseWithError(err) // never fails
		done <- packed{skipped, err}
	}()
	res, err := t.c.TarFrom(ctx, box, dir, pr)
	pr.Close()
	p := <-done
	t.res = res
	t.res.LeftOut = append(p.skipped, res.LeftOut...)
	if p.err != nil && !errors.Is(p.err, io.ErrClosedPipe) {
		return fault.New(fault.KindOf(p.err),
			"read %q", from).Because(p.err).WithHint("files that were read before the error were copied")
	}
	return err
}

// pack writes an archive of from. Names are relative to from, or name for a single file. It returns a line for each
// file that cannot be archived.
func pack(from, name string, w io.Writer) (skipped []string, err error) {
	tw := tar.NewWriter(w)
	buf := make([]byte, 512<<10)
	err = filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		if name != "" {
			rel = name
		}
		ok, err := packOne(tw, p, filepath.ToSlash(rel), st, buf)
		if !ok && err == nil {
			skipped = append(skipped, fmt.Sprintf("%q: skipped: not a file, directory or link", p))
		}
		return err
	})
	if err != nil {
		return skipped, err
	}
	return skipped, tw.Close()
}

func packOne(tw *tar.Writer, p, rel string, st fs.FileInfo, buf []byte) (ok bool, err error) {
	h := &tar.Header{Name: rel, Mode: int64(st.Mode().Perm()), ModTime: st.ModTime(), Format: tar.FormatPAX}
	switch {
	case st.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, rel+"/"
	case st.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(p); err != nil {
			return true, err
		}
	case st.Mode().IsRegular():
		h.Typeflag = tar.TypeReg
	default:
		return false, nil
	}
	if h.Typeflag != tar.TypeReg {
		return true, tw.WriteHeader(h)
	}
	f, err := os.Open(p)
	if err != nil {
		return true, err
	}
	defer f.Close()
	if st, err = f.Stat(); err != nil {
		return true, err
	}
	h.Size = st.Size()
	if err := tw.WriteHeader(h); err != nil {
		return true, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{tw}, struct{ io.Reader }{io.LimitReader(f, h.Size)}, buf)
	if err == nil && n < h.Size {
		err = fault.New(fault.Conflict, "%q was truncated while it was read", p).WithHint("try again")
	}
	return true, err
}

// fromStdin unpacks an archive from stdin into a sandbox.
func (t *transfer) fromStdin(ctx context.Context, to side) error {
	dst, there, err := t.stat(ctx, to, true)
	if err != nil {
		return err
	}
	if !there || dst.Type != wire.FileDir {
		return fault.New(fault.NotFound, "%q in %s is not a directory", to.path, to.box).
			WithHint("create it first: coppice exec %s -- mkdir -p %q", to.box, to.path)
	}
	t.res, err = t.c.TarFrom(ctx, to.box, to.path, t.a.stdin)
	return err
}

// Copying out of a sandbox.

// toStdout writes an archive to stdout, in which all names of a directory start with its name.
func (t *transfer) toStdout(ctx context.Context, from side) error {
	if tty.IsTerminal(t.a.stdout) {
		return usagef("refusing to write an archive to a terminal: redirect it, or name a destination")
	}
	src := parseSource(from.path)
	info, err := t.c.Stat(ctx, from.box, from.path, client.FileOptions{At: t.opt.at, Follow: true})
	if err != nil {
		return err
	}
	opt := client.FileOptions{At: t.opt.at}
	prefix := baseOf(from.path)
	if info.Type != wire.FileDir || src.content || prefix == "" {
		return t.c.TarTo(ctx, from.box, from.path, t.a.out, opt)
	}
	return t.receive(ctx, from, func(r io.Reader) error { return reprefix(t.a.out, r, prefix) })
}

// receive calls fn with an archive from a sandbox.
func (t *transfer) receive(ctx context.Context, from side, fn func(io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := t.c.TarTo(ctx, from.box, from.path, pw, client.FileOptions{At: t.opt.at})
		_ = pw.CloseWithError(err) // never fails
		done <- err
	}()
	err := fn(pr)
	if err == nil {
		_, err = io.Copy(io.Discard, pr) // reads past the end of the archive, to get the error of TarTo
	}
	pr.Close()
	cancel()
	if sent := <-done; err != nil && sent != nil && errors.Is(err, sent) {
		return sent
	}
	return err
}

// reprefix copies an archive with a directory in front of all names.
func reprefix(w io.Writer, r io.Reader, prefix string) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	buf := make([]byte, 512<<10)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		h.Name = prefix + "/" + strings.TrimPrefix(h.Name, "./")
		if h.Typeflag == tar.TypeLink {
			h.Linkname = prefix + "/" + h.Linkname
		}
		h.Format = tar.FormatPAX
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{tw}, struct{ io.Reader }{tr}, buf); err != nil {
			return err
		}
	}
}

// out copies from a sandbox to a local path.
func (t *transfer) out(ctx context.Context, from side, to string) error {
	src := parseSource(from.path)
	info, err := t.c.Stat(ctx, from.box, from.path,
		client.FileOptions{At: t.opt.at, Follow: t.opt.follow || src.content || strings.HasSuffix(from.path, "/")})
	if err != nil {
		return err
	}
	st, err := os.Stat(to)
	there := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "check %q", to)
	}
	isDir := there && st.IsDir()
	switch {
	case info.Type == wire.FileDir && there && !isDir:
		return fault.New(fault.Conflict, "%q is not a directory", to).
			WithHint("choose another destination, or remove it first")
	case info.Type == wire.FileDir:
		return t.outDir(ctx, from, to, there && !src.content)
	case info.Type != wire.FileRegular && info.Type != wire.FileLink:
		return fault.New(fault.Invalid,
			"%q in %s is not a file, directory or link, but a %s", from.path, from.box, info.Type).
			WithHint("copy regular files instead")
	case src.content || !isDir && os.IsPathSeparator(to[len(to)-1]):
		return fault.New(fault.Invalid, "%q is not a directory", to).
			WithHint("remove the trailing slash, or create the directory first")
	}
	dir, name := to, baseOf(from.path)
	if !isDir {
		dir, name = filepath.Dir(to), filepath.Base(to)
	}
	return t.outFile(ctx, from, info, dir, name)
}

// outDir unpacks a directory into a local one, which it creates; with below, into a subdirectory of the same name.
func (t *transfer) outDir(ctx context.Context, from side, to string, below bool) error {
	err := os.Mkdir(to, 0o755)
	fresh := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fault.New(fault.KindOf(err), "make %q", to).Because(err).
			WithHint("create the parent directory first: mkdir -p")
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return fault.Wrap(err, "open %q", to)
	}
	defer shut(root)
	if name := baseOf(from.path); below && name != "" {
		sub, made, err := subRoot(root, name)
		if err != nil {
			return fault.Wrap(err, "create %q in %q", name, to)
		}
		defer shut(sub)
		root, fresh = sub, made
	}
	u := &unpacker{root: root, fresh: fresh}
	err = t.receive(ctx, from, u.all)
	t.res = u.res
	return err
}

func shut(root *os.Root) { _ = root.Close() } // it was only read

// subRoot creates a directory in root unless it exists, and opens it.
func subRoot(root *os.Root, name string) (sub *os.Root, fresh bool, err error) {
	if _, ok := local(name); !ok {
		return nil, false, fault.New(fault.Invalid, "invalid directory name %q", name).
			WithHint("choose a name: copy to DST/NAME")
	}
	err = root.Mkdir(name, 0o755)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	fresh = err == nil
	sub, err = root.OpenRoot(name)
	return sub, fresh, err
}

// outFile copies a single file or link to dir/name.
func (t *transfer) outFile(ctx context.Context, from side, info wire.FileInfo, dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fault.New(fault.KindOf(err), "open %q", dir).Because(err).WithHint("create the directory first: mkdir -p")
	}
	defer shut(root)
	u := &unpacker{root: root}
	defer func() { t.res = u.res }()
	h := &tar.Header{Name: name, Mode: int64(info.Mode), ModTime: info.Mtime, Size: info.Size, Typeflag: tar.TypeReg}
	if info.Type == wire.FileLink {
		h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, info.Target, 0
		return u.entry(h, nil)
	}
	body, err := t.c.ReadFile(ctx, from.box, from.path, client.FileOptions{At: t.opt.at})
	if err != nil {
		return err
	}
	defer body.Close()
	h.Size = -1 // any size
	return u.entry(h, body)
}
