package policy

import (
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Template returns the text of a new file with some presets, and with comments on further settings.
func Template(presets []string) ([]byte, error) {
	for _, p := range presets {
		if !slices.Contains(PresetNames(), p) {
			e := fault.New(fault.NotFound, "unknown preset %q", p)
			all := "the presets are " + strings.Join(PresetNames(), ", ")
			if near := fault.Nearest(p, PresetNames()); near != "" {
				return nil, e.WithHint("did you mean %s? %s", near, all)
			}
			return nil, e.WithHint("%s", all)
		}
	}
	presets = slices.Compact(slices.Sorted(slices.Values(presets)))
	network := `# What can be reached; all else is denied. The network is off as long as this is
# left out.
# network:
#   presets: [pypi]
#   allow:
#     - example.com
`
	if len(presets) > 0 {
		network = `# What can be reached; all else is denied. What is denied stays so, whatever is
# allowed.
network:
  presets: [` + strings.Join(presets, ", ") + `]
  # allow:
  #   - example.com
  #   - "*.example.com:443"
  #   - {host: api.example.com, methods: [GET], paths: [/v1/*]}
  # deny: [tracker.example.com]
`
	}
	return []byte(`# yaml-language-server: $schema=` + SchemaURL + `
# What a sandbox of this project may use. All but the version can be left out.
version: 1

# How processes are confined, at least: ` + tierList(Tiers()[:GVisor.rank()+1]) + `.
# tier: supervised

` + network + `
# Files of the host. Places of credentials, as ~/.ssh, are hidden anyway.
# files:
#   hide: [./secrets]
#   readonly: [./vendor]
#   decoys: true

# limits:
#   memory: 4GiB
#   cpus: 2
#   pids: 512
#   time: 30m

# Nothing secret: everything inside can read it.
# env:
#   LANG: C.UTF-8
`), nil
}

// tierList returns the names of tiers in a sentence.
func tierList(tiers []Tier) string {
	var all []string
	for _, t := range tiers {
		all = append(all, string(t))
	}
	return strings.Join(all, ", ")
}
