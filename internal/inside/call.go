package inside

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/coppice-dev/coppice/internal/fault"
)

// maxAnswer is the maximum length of an answer, in bytes. The daemon's answers on this socket are far shorter.
const maxAnswer = 16 << 20

// call sends one request, an object with "op", and decodes the answer into a T.
func call[T any](ctx context.Context, c *Client, request any) (answer T, err error) {
	line, err := json.Marshal(request)
	if err != nil {
		return answer, fault.Wrap(err, "encode the request")
	}
	conn, err := c.dialer.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return answer, c.unreachable(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err = conn.Write(append(line, '\n')); err == nil {
		line, err = bufio.NewReader(io.LimitReader(conn, maxAnswer)).ReadBytes('\n')
	}
	switch {
	case ctx.Err() != nil:
		return answer, context.Cause(ctx)
	case err != nil:
		return answer, fault.New(fault.Unavailable, "the daemon closed the connection without an answer").Because(err).
			WithHint("try again; see the result of a change with: coppice log")
	}
	return decode[T](line)
}

// unreachable returns the error of a connection that failed.
func (c *Client) unreachable(why error) error {
	if _, err := os.Lstat(c.socket); errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Denied, "this sandbox has no access to its own history").
			WithHint("create it with access, outside: coppice create --self read, or --self rewind; " +
				"to use a separate store here, set COPPICE_HOME")
	}
	return fault.New(fault.Unavailable, "cannot connect to %s", c.socket).Because(why).
		WithHint("the daemon of this sandbox is not running; any coppice command outside starts it")
}

// decode parses the last line of an answer.
func decode[T any](line []byte) (answer T, err error) {
	var state struct {
		OK    bool       `json:"ok"`
		Error string     `json:"error"`
		Kind  fault.Kind `json:"kind"`
		Hint  string     `json:"hint"`
	}
	err = json.Unmarshal(line, &state)
	switch {
	case err == nil && state.OK:
		err = json.Unmarshal(line, &answer)
	case err == nil && state.Error != "":
		return answer, &fault.Error{Kind: state.Kind, Message: state.Error, Hint: state.Hint}
	case err == nil:
		err = errors.New("neither a result nor an error")
	}
	if err != nil {
		return answer, fault.New(fault.Version, "invalid answer from the daemon").Because(err).
			WithHint("the daemon may be of another version than this program")
	}
	return answer, nil
}
