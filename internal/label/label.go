// Package label checks and changes the labels of sandboxes: keys with values that clients attach to sandboxes, to find
// them again. Coppice does not interpret them. The package is pure: it does no I/O.
package label

import (
	"maps"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/visible"
)

const hint = "as in: coppice create --label team=web --label example.com/ticket=1234"

// Parse parses labels in the form of the command line: KEY=VALUE, or KEY for an empty value. For several with the same
// key, the last one counts. The errors are those of Check.
func Parse(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	labels := make(map[string]string, len(list))
	for _, text := range list {
		key, value, _ := strings.Cut(text, "=")
		labels[key] = value
	}
	return labels, Check(labels)
}

// Check refuses labels that no sandbox can have. The error is Invalid for a key or value with invalid characters, and
// TooLarge if a bound of package limit is exceeded.
func Check(labels map[string]string) error {
	if len(labels) > limit.Labels {
		return fault.New(fault.TooLarge, "too many labels: %d; the limit is %d", len(labels), limit.Labels).
			WithHint("remove some: coppice update NAME --label-rm KEY")
	}
	total := 0
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if err := CheckKey(key); err != nil {
			return err
		}
		value := labels[key]
		if len(value) > limit.LabelValue {
			return fault.New(fault.TooLarge, "the value of label %s has %d bytes; the limit is %d", key, len(value),
				limit.LabelValue).WithHint("keep the text in a file of the sandbox: coppice cp FILE NAME:PATH")
		}
		if visible.Clean(value) != value {
			return fault.New(fault.Invalid, "invalid value of label %s: %.60q: must be printable UTF-8 on one line", key, value).
				WithHint(hint)
		}
		total += len(key) + len(value)
	}
	if total > limit.LabelBytes {
		return fault.New(fault.TooLarge, "the labels have %d bytes; the limit is %d", total, limit.LabelBytes).
			WithHint("remove some: coppice update NAME --label-rm KEY")
	}
	return nil
}

// CheckKey refuses a key that no label can have: see Check. A key has lower-case letters, digits, ".", "-", "_"
// and "/", and begins and ends with a letter or digit, as keys of OCI annotations do.
func CheckKey(key string) error {
	alnum := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	switch {
	case len(key) > limit.LabelKey:
		return fault.New(fault.TooLarge, "the label key %.60q... has %d bytes; the limit is %d",
			key, len(key), limit.LabelKey).WithHint(hint)
	case key == "":
		return fault.New(fault.Invalid, "invalid label: the key is empty").WithHint(hint)
	}
	for i := range len(key) {
		if c := key[i]; !alnum(c) && (i == 0 || i == len(key)-1 || strings.IndexByte("._-/", c) < 0) {
			return fault.New(fault.Invalid, "invalid label key %q: must be lower-case letters, digits, \".\", \"-\", \"_\" "+
				"and \"/\", and begin and end with a letter or digit", key).WithHint(hint)
		}
	}
	return nil
}

// Change returns labels without the keys of remove, and with set, which replaces equal keys. It ignores keys of remove
// that labels does not have. The result shares nothing with the arguments, and is nil if it has no label. The errors
// are those of Check.
func Change(labels, set map[string]string, remove []string) (map[string]string, error) {
	changed := make(map[string]string, len(labels)+len(set))
	maps.Copy(changed, labels)
	for _, key := range remove {
		if err := CheckKey(key); err != nil {
			return nil, err
		}
		delete(changed, key)
	}
	maps.Copy(changed, set)
	if len(changed) == 0 {
		return nil, nil
	}
	return changed, Check(changed)
}

// List returns labels as KEY=VALUE, sorted by key.
func List(labels map[string]string) []string {
	list := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, key+"="+labels[key])
	}
	return list
}
