package line

import (
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// receive reads one message into buffer, which has maxText bytes, and which the caller wipes. The value refers to it.
func receive(conn *net.UnixConn, buffer []byte) (message, []byte, error) {
	n, _, flags, _, err := conn.ReadMsgUnix(buffer, nil)
	switch {
	case err != nil:
		return message{}, nil, err
	case n == 0:
		return message{}, nil, io.EOF
	case flags&unix.MSG_TRUNC != 0:
		return message{}, nil, errMessage()
	}
	return decode(buffer[:n])
}

// send writes one message: a packet is written whole or not at all.
func send(conn *net.UnixConn, m message, value []byte) error {
	b, err := m.encode(value)
	if err == nil {
		_, err = conn.Write(b)
	}
	return err
}
