package ledger

import "golang.org/x/sys/windows"

// noFollow opens a link itself, which openAt then refuses as not being a file or directory.
const noFollow = windows.FILE_FLAG_OPEN_REPARSE_POINT
