//go:build unix

package ledger

import "golang.org/x/sys/unix"

// noFollow refuses a link.
const noFollow = unix.O_NOFOLLOW
