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

// Paths of files are those of the sandbox, of any bytes but NUL; a leading slash
// does not matter. What the files hold, and how they are called, was written by
// whatever runs in the sandbox: trust none of it, and print no names as they are.

// FileOptions choose which files are read.
type FileOptions struct {
	At     string // a reference: as they were in that snapshot; "" is the live ones
	Follow bool   // Stat: of what a link leads to
	Depth  int    // List: how many levels down; 0 is 1, below 0 is all
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

// WriteFile makes what is read from r the content of a file, whole or not at all.
// Directories on the way are made.
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

// put uploads.
func (c *Client) put(ctx context.Context, path, kind string, r io.Reader, h http.Header, v any) error {
	if r == nil {
		r = bytes.NewReader(nil)
	}
	req, err := c.request(ctx, http.MethodPut, path, io.NopCloser(r))
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
	if err := json.NewDecoder(res.Body).Decode(v); err != nil {
		return &Error{Kind: KindUnavailable, Message: "the daemon's response was interrupted: " + err.Error(), Err: err}
	}
	return nil
}

// Stat tells of one file.
func (c *Client) Stat(ctx context.Context, name, path string, opt FileOptions) (wire.FileInfo, error) {
	q := fileQuery(path, opt)
	if opt.Follow {
		q.Set("follow", "true")
	}
	return get[wire.FileInfo](ctx, c, at(name)+"/files/stat?"+q.Encode())
}

// ListFiles gives what is in a directory.
func (c *Client) ListFiles(ctx context.Context, name, path string, opt FileOptions) ([]wire.FileInfo, error) {
	q := fileQuery(path, opt)
	if opt.Depth != 0 {
		q.Set("depth", strconv.Itoa(opt.Depth))
	}
	res, err := get[wire.FileList](ctx, c, at(name)+"/files/list?"+q.Encode())
	return res.Files, err
}

// Mkdir makes a directory; mode 0 is 0755. With parents it also makes what is
// missing on the way, and is content with a directory that is there.
func (c *Client) Mkdir(ctx context.Context, name, path string, mode uint32, parents bool) (wire.FileInfo, error) {
	req := wire.MkdirRequest{Mode: mode, Parents: parents}
	req.SetName(path)
	return post[wire.FileInfo](ctx, c, at(name)+"/files/mkdir", req)
}

// RemoveFile removes a file or an empty directory; with recursive all that is in it.
func (c *Client) RemoveFile(ctx context.Context, name, path string, recursive bool) error {
	q := url.Values{"path": {path}}
	if recursive {
		q.Set("recursive", "true")
	}
	return c.call(ctx, http.MethodDelete, at(name)+"/files?"+q.Encode(), nil, nil)
}

// Move gives a file another name, as rename(2).
func (c *Client) Move(ctx context.Context, name, from, to string) (wire.FileInfo, error) {
	var req wire.MoveRequest
	req.SetNames(from, to)
	return post[wire.FileInfo](ctx, c, at(name)+"/files/move", req)
}

// TarTo writes an archive of a directory, with names relative to it, or of a single
// file, to w. After an error w holds no whole archive.
func (c *Client) TarTo(ctx context.Context, name, path string, w io.Writer, opt FileOptions) error {
	return c.archive(ctx, at(name)+"/files/tar?"+fileQuery(path, opt).Encode(), w)
}

// archive writes what is at a path to w.
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

// TarFrom unpacks an archive, also one by gzip or zstd, into a directory of the
// sandbox, which is made.
func (c *Client) TarFrom(ctx context.Context, name, path string, r io.Reader) (wire.UnpackResult, error) {
	var res wire.UnpackResult
	q := url.Values{"path": {path}}
	err := c.put(ctx, at(name)+"/files/tar?"+q.Encode(), "application/x-tar", r, http.Header{}, &res)
	return res, err
}

// Watch calls fn with what happens to the files in a directory, with recursive also
// below it, until ctx ends, fn gives an error, or what is watched is gone. ready, if
// not nil, is called when nothing is missed any more.
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

// readEvents reads Server-Sent Events until their end, or one that is an error.
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

// maxEventLine is the longest line of an event that is read.
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
