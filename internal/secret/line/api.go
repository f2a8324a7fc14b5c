package line

import (
	"context"
	"os"
	"time"
)

// Value is the value of a secret. It prints as "[secret]" in every format.
type Value struct {
	// Bytes belongs to the receiver, until Close.
	Bytes []byte
	// Until is when the receiver must forget the value: at most a minute after it was sent.
	Until time.Time
	// Version differs for different values of a grant, as long as the broker runs.
	Version int64
}

// Close wipes the bytes. It may be called twice.
func (v Value) Close() { clear(v.Bytes[:cap(v.Bytes)]) }

// Dial connects to the broker's socket at path, says the ticket, and returns the connected socket once the broker has
// accepted it. The caller closes it, and may pass it to another process. Dial returns Unavailable if no broker answers
// within patience, and Denied if the broker does not know the ticket.
func Dial(path string, ticket []byte, patience time.Duration) (*os.File, error) { panic("not yet") }

// Client is the gate's end of a line. Its methods are safe for concurrent use.
type Client struct{}

// NewClient returns the client of a connection from Dial, which it owns. It starts one goroutine, which calls dropped
// for each grant whose value must be forgotten, in the order of the broker's messages, and with "" as the last call if
// the line broke, after which every Get fails. dropped must not call Close.
func NewClient(conn *os.File, dropped func(grant string)) *Client { panic("not yet") }

// Get asks for the value of a grant, for a request to a host. It returns Denied if the broker refuses, and Unavailable
// if the store of the secret cannot be reached or the line broke; both have a hint. The caller closes the Value.
func (c *Client) Get(ctx context.Context, grant, host, method, path string) (Value, error) { panic("not yet") }

// Fresh reports whether no drop of the grant was received since v was. To keep values without a race, a caller holds
// one lock while it calls Fresh and keeps the value, and takes the same lock in dropped to forget it.
func (c *Client) Fresh(grant string, v Value) bool { panic("not yet") }

// Close closes the connection, and waits for the goroutine. It does not cause a call dropped("").
func (c *Client) Close() { panic("not yet") }
