//go:build linux

package message

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/visible"
)

// places describes where most paths changed: "src/ (12 paths), go.mod in /root/app". The paths are absolute, and the
// first layer.MaxPaths of those that changed.
func places(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	top := common(paths)
	groups := map[string][]string{} // by the name below top
	for _, p := range paths {
		name, _, _ := strings.Cut(strings.TrimPrefix(p[len(top):], "/"), "/")
		groups[name] = append(groups[name], p)
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if n := len(groups[b]) - len(groups[a]); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	cutOff := ""
	if len(paths) >= layer.MaxPaths {
		cutOff = "+"
	}
	// Names in / are written with it; otherwise the directory comes last.
	from, in := len(top)+1, ""
	if top == "" {
		from = 0
	} else if len(paths) > 1 {
		in = " in " + visible.Word(Clean(top))
	} else {
		from = 0
	}
	words := make([]string, len(names))
	for i, name := range names {
		switch g := groups[name]; {
		case len(g) == 1:
			words[i] = visible.Word(Clean(g[0][min(from, len(g[0])):]))
		default:
			words[i] = fmt.Sprintf("%s (%d%s paths)", visible.Word(Clean(common(g)[from:]+"/")), len(g), cutOff)
		}
	}
	return enumerate(words, ", ", 0) + in
}

// common returns the deepest directory that contains all paths; "" is the root. It may be one of the paths if the
// others are beneath it.
func common(paths []string) string {
	dir := path.Dir(paths[0])
	if len(paths) > 1 && strings.HasPrefix(paths[1], paths[0]+"/") {
		dir = paths[0]
	}
	for _, p := range paths {
		for dir != "/" && dir != p && !strings.HasPrefix(p, dir+"/") {
			dir = path.Dir(dir)
		}
	}
	if dir == "/" {
		return ""
	}
	return dir
}
