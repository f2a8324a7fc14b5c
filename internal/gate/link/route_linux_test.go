//go:build linux && (amd64 || arm64)

package link

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRouteKind_RefusesMalformedReply(t *testing.T) {
	t.Parallel()
	reply := func(change func(b []byte) []byte) []byte {
		b := make([]byte, nlHeader+12)
		binary.LittleEndian.PutUint32(b, uint32(len(b)))
		binary.LittleEndian.PutUint16(b[4:], unix.RTM_NEWROUTE)
		binary.LittleEndian.PutUint32(b[8:], 7)
		b[nlHeader], b[nlHeader+7] = unix.AF_INET, unix.RTN_LOCAL
		return change(b)
	}
	failed := func(code int32) []byte {
		return reply(func(b []byte) []byte {
			binary.LittleEndian.PutUint16(b[4:], unix.NLMSG_ERROR)
			binary.LittleEndian.PutUint32(b[nlHeader:], uint32(code))
			return b
		})
	}
	same := func(b []byte) []byte { return b }
	if kind, err := routeKind(reply(same), 7, unix.AF_INET); kind != unix.RTN_LOCAL || err != nil {
		t.Errorf("a whole route: %d, %v", kind, err)
	}
	for name, tt := range map[string]struct {
		reply []byte
		want  error
	}{
		"nothing":            {nil, unix.EBADMSG},
		"only a header":      {reply(func(b []byte) []byte { return b[:nlHeader] }), unix.EBADMSG},
		"truncated":          {reply(func(b []byte) []byte { return b[:nlHeader+6] }), unix.EBADMSG},
		"another request's":  {reply(func(b []byte) []byte { b[8]++; return b }), unix.EBADMSG},
		"another message":    {reply(func(b []byte) []byte { b[4] = unix.RTM_NEWLINK; return b }), unix.EBADMSG},
		"another family":     {reply(func(b []byte) []byte { b[nlHeader] = unix.AF_INET6; return b }), unix.EBADMSG},
		"a length too small": {reply(func(b []byte) []byte { b[0] = nlHeader + 4; return b }), unix.EBADMSG},
		"an acknowledgement": {failed(0), unix.EBADMSG},
		"no route":           {failed(-int32(unix.ENETUNREACH)), unix.ENETUNREACH},
		"ENOBUFS":            {failed(-int32(unix.ENOBUFS)), unix.ENOBUFS},
	} {
		if kind, err := routeKind(tt.reply, 7, unix.AF_INET); !errors.Is(err, tt.want) || kind != 0 {
			t.Errorf("%s: %d, %v; want %v", name, kind, err, tt.want)
		}
	}
}
