//go:build linux && (amd64 || arm64)

package notify

type renameArgs struct {
	from, to place
	flags    uint32
}

func (s *server) rename(c caller, a renameArgs) (verdict, func() verdict) { return proceed, nil }
