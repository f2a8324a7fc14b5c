package ledger

import "golang.org/x/sys/windows"

// noFollow opens a link itself, which is then found not to be a file of a ledger.
const noFollow = windows.FILE_FLAG_OPEN_REPARSE_POINT
