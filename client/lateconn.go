package client

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
)

// answered is a connection of one request whose server may answer, and close it, before it has read all of
// the request. Later writes are discarded: otherwise package net/http would return their error (EPIPE) instead of the
// answer, which has the reason. Without an answer, the read fails.
type answered struct{ net.Conn }

func (c answered) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(p), nil
	}
	return n, err
}

// whole is the body of an upload. done is set once all of it was read: an answer that confirms the upload before that
// is wrong, since answered may have discarded the rest.
type whole struct {
	io.Reader
	done atomic.Bool
}

// Read implements io.Reader.
func (w *whole) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		w.done.Store(true)
	}
	return n, err
}
