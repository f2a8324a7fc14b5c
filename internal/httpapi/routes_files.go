package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// The routes of files. A path is a query parameter, percent-encoded, of any bytes.
// With at=REF, the files of a snapshot are read, without starting the sandbox.

// AtPath is the input of an operation on one path. onePath reads the path, since it may have any bytes.
type AtPath struct {
	Named
	Path string `query:"path" doc:"path of the file, percent-encoded; any bytes are valid; / is the root directory"`
}

// PastPath is the input of an operation on one path of the live files or of a snapshot.
type PastPath struct {
	AtPath
	At string `query:"at" doc:"read from this snapshot, without starting the sandbox"`
}

// addFiles adds the operations on files.
func (s *Server) addFiles(api huma.API) {
	files := func(method, path, id, summary string, scope auth.Scope) huma.Operation {
		return operation(method, box+"/files"+path, id, summary, tagFiles, scope)
	}
	info, problem := schemaOf[wire.FileInfo](api), schemaOf[problemDocument](api)

	op := files("GET", "", "readFile", "Read a file or a range of it", auth.Read)
	answers(&op, http.StatusOK, asBytes, "the file, with an ETag for If-Match", binary())
	answers(&op, http.StatusPartialContent, asBytes, "the range", binary())
	raw(s, api, streams(op), func(_ *PastPath, w http.ResponseWriter, r *http.Request) { s.fileRead(w, r) })

	op = files("PUT", "", "writeFile", "Write a whole file and create its directories", auth.Operate)
	answers(&op, http.StatusOK, asJSON, "the file", info)
	answers(&op, http.StatusPreconditionFailed, asProblem, http.StatusText(http.StatusPreconditionFailed), problem)
	op = streams(op)
	raw(s, api, op, func(_ *struct {
		AtPath
		Mode  string `query:"mode" doc:"file mode in octal, such as 0644"`
		Match string `header:"If-Match" doc:"replace only a file with this ETag; * replaces any file"`
		None  string `header:"If-None-Match" doc:"* writes only if the file does not exist"`
	}, w http.ResponseWriter, r *http.Request) {
		s.fileWrite(w, r)
	})
	takes(api, op, "the file's bytes", map[string]*huma.MediaType{asBytes: {Schema: binary()}})

	op = files("DELETE", "", "removeFile", "Remove a file or directory", auth.Operate)
	op.DefaultStatus = http.StatusNoContent
	answers(&op, http.StatusNoContent, "", "done", nil)
	raw(s, api, op, func(_ *struct {
		AtPath
		Recursive bool `query:"recursive" doc:"with its contents"`
	}, w http.ResponseWriter, r *http.Request) {
		s.fileRemove(w, r)
	})

	op = files("GET", "/stat", "statFile", "Stat a file", auth.Read)
	answers(&op, http.StatusOK, asJSON, "the file", info)
	raw(s, api, op, func(_ *struct {
		PastPath
		Follow bool `query:"follow" doc:"follow symbolic links"`
	}, w http.ResponseWriter, r *http.Request) {
		v, err := s.fileStat(r)
		s.reply(w, r, v, err)
	})
	op = files("GET", "/list", "listFiles", "List the files of a directory, by path", auth.Read)
	answers(&op, http.StatusOK, asJSON, "the files", schemaOf[wire.FileList](api))
	raw(s, api, op, func(_ *struct {
		PastPath
		Depth int `query:"depth" doc:"levels to descend; the default is 1; -1 is unlimited"`
	}, w http.ResponseWriter, r *http.Request) {
		v, err := s.fileList(r)
		s.reply(w, r, v, err)
	})

	plain(s, api, created(files("POST", "/mkdir", "makeDirectory", "Create a directory", auth.Operate)),
		func(ctx context.Context, in *sent[wire.MkdirRequest]) (wire.FileInfo, error) {
			return s.fileMkdir(ctx, in.Name, in.Body)
		})
	plain(s, api, files("POST", "/move", "moveFile", "Move a file or directory", auth.Operate),
		func(ctx context.Context, in *sent[wire.MoveRequest]) (wire.FileInfo, error) {
			return s.fileMove(ctx, in.Name, in.Body)
		})

	op = streams(files("GET", "/watch", "watchFiles", "Watch a file or directory", auth.Read))
	answers(&op, http.StatusOK, asEvents, "one FileEvent per change, with its kind as the event "+
		"name", schemaOf[wire.FileEvent](api))
	raw(s, api, op, func(_ *struct {
		AtPath
		Recursive bool `query:"recursive" doc:"also watch the directories below it"`
	}, w http.ResponseWriter, r *http.Request) {
		s.fileWatch(w, r)
	})

	op = streams(files("GET", "/tar", "downloadFiles", "Download a directory as an archive", auth.Read))
	answers(&op, http.StatusOK, asTar, "the archive; a late error is in the trailer "+errorTail, binary())
	raw(s, api, op, func(_ *PastPath, w http.ResponseWriter, r *http.Request) { s.tarRead(w, r) })
	op = streams(files("PUT", "/tar", "uploadFiles", "Unpack an archive into a directory", auth.Operate))
	answers(&op, http.StatusOK, asJSON, "the unpacked files", schemaOf[wire.UnpackResult](api))
	raw(s, api, op, func(_ *AtPath, w http.ResponseWriter, r *http.Request) {
		v, err := s.tarWrite(w, r)
		s.reply(w, r, v, err)
	})
	takes(api, op, "the archive", map[string]*huma.MediaType{asTar: {Schema: binary()}})
}

// asTar is an archive. In a request it may be compressed with gzip or zstd.
const asTar = "application/x-tar"

// reply answers with one JSON document, or a problem.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	var b []byte
	if err == nil {
		b, err = json.Marshal(v)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	send(w, http.StatusOK, asJSON, b)
}

// boolParam returns a boolean parameter of the query.
func boolParam(r *http.Request, key string) bool { return r.URL.Query().Get(key) == "true" }

// onePath returns the parameter path.
func onePath(r *http.Request) (string, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", fault.New(fault.Invalid, "malformed query").Because(err).
			WithHint("percent-encode the path: path=%%2Fsrc%%2Fmain.go")
	}
	if len(q["path"]) != 1 || q.Get("path") == "" {
		return "", fault.New(fault.Invalid, "expected exactly one path").
			WithHint("send it as ?path=/src/main.go; / is the root directory")
	}
	return q.Get("path"), nil
}

// reading opens the files that a request reads.
func (s *Server) reading(r *http.Request) (PastFiles, string, error) {
	p, err := onePath(r)
	if err != nil {
		return nil, "", err
	}
	if at := r.URL.Query().Get("at"); at != "" {
		f, err := s.opt.FileOpener.OpenPast(r.Context(), r.PathValue("name"), at)
		return f, p, err
	}
	f, err := s.opt.FileOpener.OpenFiles(r.Context(), r.PathValue("name"))
	if err == nil {
		f.Begin("read " + name(p))
	}
	return f, p, err
}

// writing opens the files that a request changes.
func (s *Server) writing(r *http.Request, verb string) (Files, string, error) {
	p, err := onePath(r)
	if err != nil {
		return nil, "", err
	}
	f, err := s.opt.FileOpener.OpenFiles(r.Context(), r.PathValue("name"))
	if err == nil {
		f.Begin(verb + " " + name(p))
	}
	return f, p, err
}

// name returns a path in the form for messages.
func name(p string) string {
	if t := strings.Trim(p, "/"); t != "" {
		return t
	}
	return "/"
}

// endWith returns a context that also ends when the sandbox of the files is stopped. If w is not nil, this also
// unblocks reads from and writes to the client. The caller must call end before it closes the files.
func endWith(ctx context.Context, f PastFiles, w http.ResponseWriter) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	session, ok := f.(FileSession)
	if !ok { // a snapshot, which does not change
		return ctx, func() { cancel(nil) }
	}
	unhook := session.OnStop(func(cause error) {
		cancel(cause)
		if w == nil {
			return
		}
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(time.Unix(1, 0)) // if deadlines are not supported, the client's own timeouts end it
		_ = rc.SetWriteDeadline(time.Unix(1, 0))
	})
	return ctx, func() {
		unhook()
		cancel(nil)
	}
}

func (s *Server) fileStat(r *http.Request) (any, error) {
	f, p, err := s.reading(r)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat(p, boolParam(r, "follow"))
}

func (s *Server) fileList(r *http.Request) (any, error) {
	depth := 1
	if v := r.URL.Query().Get("depth"); v != "" {
		var err error
		if depth, err = strconv.Atoi(v); err != nil {
			return nil, fault.New(fault.Invalid, "invalid depth %q: must be a number", v).
				WithHint("send the number of levels to descend, or -1 for all")
		}
	}
	f, p, err := s.reading(r)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ctx, end := endWith(r.Context(), f, nil)
	defer end()
	return f.List(ctx, p, depth)
}

// harmless sets headers that make a browser save the content, and run none of it.
func harmless(h http.Header, kind, filename string) {
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "private, no-cache")
	h.Set("Content-Disposition", "attachment; filename*=UTF-8''"+attrChars(filename))
}

// attrChars encodes a value of a header parameter (RFC 8187).
func attrChars(s string) string {
	const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$&+-.^_`|~"
	var b strings.Builder
	for _, c := range []byte(strings.ToValidUTF8(s, "_")) {
		if strings.IndexByte(plain, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func (s *Server) fileRead(w http.ResponseWriter, r *http.Request) {
	f, p, err := s.reading(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer f.Close()
	_, end := endWith(r.Context(), f, w)
	defer end()
	info, body, err := f.Open(p)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer body.Close()
	harmless(w.Header(), asBytes, path.Base(p))
	w.Header().Set("ETag", info.ETag)
	w.Header().Set("Coppice-Mode", fmt.Sprintf("%04o", info.Mode))
	// No modification time is sent, only the ETag: a sandbox can set any time.
	http.ServeContent(&wide{w}, r, "", time.Time{}, body)
}

// wide copies with a larger buffer than net/http.
type wide struct{ http.ResponseWriter }

// ReadFrom is called by io.CopyN.
func (w *wide) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w.ResponseWriter}, struct{ io.Reader }{r}, make([]byte, 512<<10))
}

// Unwrap is for http.ResponseController.
func (w *wide) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// writeOptions reads mode, If-Match and If-None-Match.
func writeOptions(r *http.Request) (opt wire.WriteOptions, err error) {
	if v := r.URL.Query().Get("mode"); v != "" {
		m, err := strconv.ParseUint(v, 8, 12)
		if err != nil {
			return opt, fault.New(fault.Invalid, "invalid mode %q: must be an octal file mode", v).
				WithHint("send it in octal, such as mode=0644")
		}
		mode := uint32(m)
		opt.Mode = &mode
	}
	opt.Match = r.Header.Get("If-Match")
	if strings.ContainsAny(opt.Match, ",") || strings.HasPrefix(opt.Match, "W/") {
		return opt, fault.New(fault.Invalid, "invalid If-Match %s: must be one ETag "+
			"or *", opt.Match).WithHint("send the ETag of the last response, or *")
	}
	switch v := r.Header.Get("If-None-Match"); v {
	case "":
	case "*":
		opt.New = true
	default:
		return opt, fault.New(fault.Invalid, "invalid If-None-Match %s: must be *", v).
			WithHint("send *, which writes the file unless it exists")
	}
	return opt, nil
}

func (s *Server) fileWrite(w http.ResponseWriter, r *http.Request) {
	opt, err := writeOptions(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	f, p, err := s.writing(r, "write")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer f.Close()
	ctx, end := endWith(r.Context(), f, w)
	info, err := f.WriteFile(ctx, p, r.Body, opt)
	end()
	if err != nil {
		s.failMatch(w, r, opt, err)
		return
	}
	if err := f.Done(r.Context(), "write "+name(p)); err != nil {
		s.fail(w, r, err)
		return
	}
	b, err := json.Marshal(info)
	if err != nil {
		s.fail(w, r, fault.Wrap(err, "encode the response"))
		return
	}
	w.Header().Set("ETag", info.ETag)
	send(w, http.StatusOK, asJSON, b)
}

// failMatch is fail, with status 412 if a condition of the request does not hold.
func (s *Server) failMatch(w http.ResponseWriter, r *http.Request, opt wire.WriteOptions, err error) {
	if opt.Match != "" && fault.Is(err, fault.Conflict) || opt.New && fault.Is(err, fault.Exists) {
		p := s.problem(r.Method+" "+r.URL.Path, err)
		p.Status, p.Title = http.StatusPreconditionFailed, http.StatusText(http.StatusPreconditionFailed)
		b, _ := json.Marshal(p) // strings and a number
		send(w, p.Status, asProblem, b)
		return
	}
	s.fail(w, r, err)
}

func (s *Server) fileRemove(w http.ResponseWriter, r *http.Request) {
	if err := s.removeFile(r); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) removeFile(r *http.Request) error {
	recursive := boolParam(r, "recursive")
	f, p, err := s.writing(r, "remove")
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, end := endWith(r.Context(), f, nil)
	defer end()
	err = f.Remove(ctx, p, recursive)
	if err != nil && !recursive {
		return err
	}
	// Part of a tree may be removed even after an error.
	return errors.Join(err, f.Done(r.Context(), "remove "+name(p)))
}

func (s *Server) fileMkdir(ctx context.Context, box string, req wire.MkdirRequest) (info wire.FileInfo, err error) {
	p := req.Name()
	f, err := s.opt.FileOpener.OpenFiles(ctx, box)
	if err != nil {
		return info, err
	}
	defer f.Close()
	f.Begin("make " + name(p))
	if err := f.Mkdir(p, req.Mode, req.Parents); err != nil {
		return info, err
	}
	if info, err = f.Stat(p, true); err != nil {
		return info, err
	}
	return info, f.Done(ctx, "make directory "+name(p))
}

func (s *Server) fileMove(ctx context.Context, box string, req wire.MoveRequest) (info wire.FileInfo, err error) {
	from, to := req.Names()
	f, err := s.opt.FileOpener.OpenFiles(ctx, box)
	if err != nil {
		return info, err
	}
	defer f.Close()
	f.Begin("move " + name(from))
	if err := f.Move(from, to); err != nil {
		return info, err
	}
	if info, err = f.Stat(to, false); err != nil {
		return info, err
	}
	return info, f.Done(ctx, "move "+name(from)+" to "+name(to))
}

// watchPatience is the timeout for a client to read an event.
const watchPatience = 15 * time.Second

func (s *Server) fileWatch(w http.ResponseWriter, r *http.Request) {
	p, err := onePath(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	f, err := s.opt.FileOpener.OpenFiles(r.Context(), r.PathValue("name"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer f.Close()
	ctx, end := endWith(r.Context(), f, nil)
	defer end()
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	out := &sse{w: w}
	defer out.beat(ctx)()
	err = f.Watch(ctx, p, boolParam(r, "recursive"), func(ev wire.FileEvent) error {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(watchPatience))
		if ev.Kind == "" {
			return out.begin()
		}
		return out.event(ev.Kind, "", ev)
	})
	switch {
	case err != nil && !out.hasBegun():
		s.fail(w, r, err)
	case err != nil && r.Context().Err() == nil && !errors.Is(err, errGone):
		_ = out.event("error", "", s.problem(r.Method+" "+r.URL.Path, err)) // the client may be gone
	}
}

// tarRead answers with an archive. An error after the first byte is in the trailer Coppice-Error, and truncates
// the archive.
func (s *Server) tarRead(w http.ResponseWriter, r *http.Request) {
	f, p, err := s.reading(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer f.Close()
	ctx, end := endWith(r.Context(), f, w)
	defer end()
	base := path.Base(p)
	if base == "/" || base == "." {
		base = "root"
	}
	out := &begun{w: w, start: func() {
		harmless(w.Header(), asTar, base+".tar")
		w.Header().Set("Trailer", errorTail)
	}}
	err = f.TarTo(ctx, p, out)
	switch {
	case err == nil:
	case !out.yes:
		s.fail(w, r, err)
	default:
		b, _ := json.Marshal(s.wireError(r.Method+" "+r.URL.Path, err)) // strings
		w.Header().Set(errorTail, string(b))
	}
}

// begun calls start before the first byte is written.
type begun struct {
	w     io.Writer
	start func()
	yes   bool
}

func (b *begun) Write(p []byte) (int, error) {
	if !b.yes {
		b.yes = true
		b.start()
	}
	return b.w.Write(p)
}

func (s *Server) tarWrite(w http.ResponseWriter, r *http.Request) (any, error) {
	f, p, err := s.writing(r, "unpack into")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ctx, end := endWith(r.Context(), f, w)
	res, err := f.TarFrom(ctx, p, r.Body)
	end()
	label := fmt.Sprintf("unpack %d files into %s", res.Files, name(p))
	if err != nil {
		label += ", incomplete"
	}
	return res, errors.Join(err, f.Done(r.Context(), label))
}
