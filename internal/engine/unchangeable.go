//go:build linux

package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/visible"
)

// unchangeable warns of files of the host, in a directory and below it, that the owner of the daemon may change and a
// command in the sandbox cannot (EOVERFLOW). It does not change their group, which is up to the user.
func unchangeable(ctx context.Context, e *Engine, rec *meta.Sandbox, dir string) []string {
	if dir == "/" { // the usual working directory in a container, and no project
		return nil
	}
	access, err := e.Policies.Places(ctx, rec)
	if err == nil && slices.ContainsFunc(access.Mounts, func(m rootspec.HostMount) bool {
		return rootspec.Within(dir, m.To) // the host's file system itself, where all ids are valid
	}) {
		return nil
	}
	var u rootfs.Unchangeable
	if err == nil {
		u, err = rootfs.FindUnchangeable(ctx, dir, e.Home)
	}
	if err != nil {
		e.Logger.Warn("could not look for files that a sandbox cannot change", "sandbox", rec.Name, "err", err)
	}
	if u.Count == 0 {
		return nil
	}
	return []string{unchangeableText(u, dir, e.GID)}
}

// unchangeableText is the warning about a directory; gid is the group of the owner of the daemon.
func unchangeableText(u rootfs.Unchangeable, dir string, gid uint32) string {
	what := fmt.Sprintf("%d files and directories", u.Count)
	switch {
	case u.More:
		what = "at least " + what
	case u.Count == 1:
		what = "1 file or directory"
	}
	whose := "owner or group"
	fix := fmt.Sprintf("mount the directory: files.mounts: [{from: %[1]q, to: %[1]q, mode: rw}] in a policy", dir)
	if u.Grouped > 0 {
		fix = fmt.Sprintf("change their group: chgrp -hR %d %s; or ", gid, visible.Word(dir)) + fix
	}
	if u.Grouped == u.Count {
		whose = "group"
	}
	return fmt.Sprintf("commands cannot change %s in %q, first %q (EOVERFLOW): the user namespace of an ordinary user "+
		"does not map their %s; %s", what, dir, u.First, whose, fix)
}
