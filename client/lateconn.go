package client

import (
	"errors"
	"net"
	"syscall"
)

// answered is a connection of one request whose server may answer, and close it, before it has read all of
// the request. What is written then is discarded, so that the answer is read: package net/http would return the
// error of the write (EPIPE) instead, but the answer has the reason. If there is no answer, the read fails.
type answered struct{ net.Conn }

func (c answered) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(p), nil
	}
	return n, err
}
