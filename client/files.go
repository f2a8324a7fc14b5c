package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
)

// Paths are those inside the sandbox, of any bytes but NUL; a leading slash is ignored. File contents and names are
// written by processes in the sandbox: do not trust them, and do not print names unescaped.

// FileOptions selects which files are read.
type FileOptions struct {
	At     string // a reference: files of that snapshot; "" is the live files
	Follow bool   // for Stat: follow a symbolic link
	Depth  int    // for List: maximum depth; 0 is 1, a negative value unlimited
}

func fileQuery(path string, opt FileOptions) url.Values {
	q := url.Values{"path": {path}}
	if opt.At != "" {
		q.Set("at", opt.At)
	}
	return q
}

// ReadFile opens a regular file. The caller closes it.
func (c *Client) ReadFile(ctx context.Context, name, path string, opt FileOptions) (io.ReadCloser, error) {
	res, err := c.do(ctx, http.MethodGet, at(name)+"/files?"+fileQuery(path, opt).Encode(), "", nil, "")
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, problem(res)
	}
	return res.Body, nil
}

// WriteFile replaces the content of a file with what it reads from r, atomically. It creates missing parent
// directories.
func (c *Client) WriteFile(
	ctx context.Context, name, path string, r io.Reader, opt wire.WriteOptions,
) (wire.FileInfo, error) {
	var info wire.FileInfo
	q := url.Values{"path": {path}}
	if opt.Mode != nil {
		q.Set("mode", "0"+strconv.FormatUint(uint64(*opt.Mode), 8))
	}
	h := http.Header{}
	if opt.Match != "" {
		h.Set("If-Match", opt.Match)
	}
	if opt.New {
		h.Set("If-None-Match", "*")
	}
	err := c.put(ctx, at(name)+"/files?"+q.Encode(), "application/octet-stream", r, h, &info)
	return info, err
}

// put uploads r.
func (c *Client) put(ctx context.Context, path, kind string, r io.Reader, h http.Header, v any) error {
	if r == nil {
		r = bytes.NewReader(nil)
	}
	sent := &whole{Reader: r}
	req, err := c.request(ctx, http.MethodPut, path, io.NopCloser(sent))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, h)
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Expect", "100-continue")
	res, err := c.http.Do(req)
	if err != nil {
		return unavailable(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return problem(res)
	}
	if !sent.done.Load() {
		return &Error{Kind: KindUnavailable, Message: "the daemon confirmed the upload before it was sent completely"}
	}
	if err := json.NewDecoder(res.Body).Decode(v); err != nil {
		return &Error{Kind: KindUnavailable, Message: "the daemon's response was interrupted: " + err.Error(), Err: err}
	}
	return nil
}

// Stat describes one file.
func (c *Client) Stat(ctx context.Context, name, path string, opt FileOptions) (wire.FileInfo, error) {
	q := fileQuery(path, opt)
	if opt.Follow {
		q.Set("follow", "true")
	}
	return get[wire.FileInfo](ctx, c, at(name)+"/files/stat?"+q.Encode())
}

// ListFiles lists a directory.
func (c *Client) ListFiles(ctx context.Context, name, path string, opt FileOptions) ([]wire.FileInfo, error) {
	q := fileQuery(path, opt)
	if opt.Depth != 0 {
		q.Set("depth", strconv.Itoa(opt.Depth))
	}
	res, err := get[wire.FileList](ctx, c, at(name)+"/files/list?"+q.Encode())
	return res.Files, err
}

// Mkdir creates a directory; mode 0 is 0755. With parents it also creates missing parents, and succeeds if the
// directory exists.
func (c *Client) Mkdir(ctx context.Context, name, path string, mode uint32, parents bool) (wire.FileInfo, error) {
	req := wire.MkdirRequest{Mode: mode, Parents: parents}
	req.SetName(path)
	return post[wire.FileInfo](ctx, c, at(name)+"/files/mkdir", req)
}

// RemoveFile removes a file or an empty directory; with recursive also a directory with its content.
func (c *Client) RemoveFile(ctx context.Context, name, path string, recursive bool) error {
	q := url.Values{"path": {path}}
	if recursive {
		q.Set("recursive", "true")
	}
	return c.call(ctx, http.MethodDelete, at(name)+"/files?"+q.Encode(), nil, nil)
}

// Move renames a file, as rename(2).
func (c *Client) Move(ctx context.Context, name, from, to string) (wire.FileInfo, error) {
	var req wire.MoveRequest
	req.SetNames(from, to)
	return post[wire.FileInfo](ctx, c, at(name)+"/files/move", req)
}

// TarTo writes an archive of a directory, with names relative to it, or of a single file, to w. If it fails, the
// archive in w is incomplete.
func (c *Client) TarTo(ctx context.Context, name, path string, w io.Writer, opt FileOptions) error {
	return c.archive(ctx, at(name)+"/files/tar?"+fileQuery(path, opt).Encode(), w)
}

// archive writes the archive at an API path to w.
func (c *Client) archive(ctx context.Context, path string, w io.Writer) error {
	res, err := c.do(ctx, http.MethodGet, path, "", nil, "")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return problem(res)
	}
	if _, err := io.CopyBuffer(w, struct{ io.Reader }{res.Body}, make([]byte, 512<<10)); err != nil {
		return fmt.Errorf("receive the archive: %w", err)
	}
	if tail := res.Trailer.Get("Coppice-Error"); tail != "" {
		var e wire.Error
		if err := json.Unmarshal([]byte(tail), &e); err != nil {
			return &Error{Kind: KindInternal, Message: tail}
		}
		return fromWire(e)
	}
	return nil
}

// TarFrom unpacks an archive, which may be compressed with gzip or zstd, into a directory of the sandbox. The
// directory is created if missing.
func (c *Client) TarFrom(ctx context.Context, name, path string, r io.Reader) (wire.UnpackResult, error) {
	var res wire.UnpackResult
	q := url.Values{"path": {path}}
	err := c.put(ctx, at(name)+"/files/tar?"+q.Encode(), "application/x-tar", r, http.Header{}, &res)
	return res, err
}

// Watch calls fn with the changes of files in a directory, with recursive also below it, until ctx ends, fn returns
// an error, or the directory is removed. ready, if not nil, is called once the watch is complete: no later change is
// missed.
func (c *Client) Watch(
	ctx context.Context, name, path string, recursive bool, ready func(), fn func(wire.FileEvent) error,
) error {
	q := url.Values{"path": {path}}
	if recursive {
		q.Set("recursive", "true")
	}
	res, err := c.do(ctx, http.MethodGet, at(name)+"/files/watch?"+q.Encode(), "", nil, "text/event-stream")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return problem(res)
	}
	if ready != nil {
		ready()
	}
	return readEvents(res.Body, fn)
}

// readEvents reads Server-Sent Events until their end, or until an event that is an error.
func readEvents(r io.Reader, fn func(wire.FileEvent) error) error {
	kind := ""
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := eventLine(br)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return unavailable(err)
		}
		if v, ok := strings.CutPrefix(line, "event: "); ok {
			kind = v
			continue
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		if kind == "error" {
			var p wire.Problem
			if err := json.Unmarshal([]byte(data), &p); err != nil {
				return &Error{Kind: KindInternal, Message: data}
			}
			return fromWire(wire.Error{Kind: p.Kind, Message: p.Detail, Hint: p.Hint})
		}
		var ev wire.FileEvent
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return &Error{Kind: KindInternal, Message: "the daemon sent an invalid event", Err: err}
		}
		if err := fn(ev); err != nil {
			return err
		}
	}
}

// maxEventLine is the maximum length of a line, in bytes.
const maxEventLine = 8 << 20

func eventLine(br *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxEventLine {
			return "", &Error{Kind: KindInternal, Message: "the daemon sent a line that is too long"}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return strings.TrimRight(string(line), "\r\n"), err
	}
}
