package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// mark is in each value of the tests. No error may contain it, or what an encoding makes of it.
const mark = "XyzzyMarkedValue4711"

// mustHide checks that an error does not contain a value.
func mustHide(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err), fault.HintOf(err)} {
		if strings.Contains(strings.ToLower(text), strings.ToLower(mark)) {
			t.Errorf("the error contains the value: %s", text)
		}
	}
}

// mustFail checks the kind of an error, and that it does not contain a value.
func mustFail(t *testing.T, err error, kind fault.Kind) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Errorf("%q: %v, expected %q", fault.KindOf(err), err, kind)
	}
	mustHide(t, err)
}

// mustBe checks a value and closes it.
func mustBe(t *testing.T, v Value, err error, want string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if got := string(v.Bytes()); got != want {
		t.Errorf("value %q, expected %q", got, want)
	}
	v.Close()
}

func TestValue_PrintsNothing(t *testing.T) {
	t.Parallel()
	v, err := newValue([]byte(mark))
	if err != nil {
		t.Fatal(err)
	}
	type outer struct {
		V     Value
		inner Value
		P     *Value
	}
	o := outer{v, v, &v}
	var all bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
		fmt.Fprintf(&all, verb, v)
		fmt.Fprintf(&all, verb, &v)
		fmt.Fprintf(&all, verb, o)
		fmt.Fprintf(&all, verb, []Value{v})
		fmt.Fprintf(&all, verb, map[string]Value{"k": v})
	}
	for _, x := range []any{v, &v, o, map[string]Value{"k": v}} {
		b, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	slog.New(slog.NewJSONHandler(&all, nil)).Info("x", "v", v, "o", o)
	slog.New(slog.NewTextHandler(&all, nil)).Info("x", "v", v, "o", o)
	for _, form := range []string{mark, fmt.Sprintf("%x", mark), fmt.Sprintf("%X", mark), fmt.Sprintf("%d", []byte(mark))} {
		if strings.Contains(all.String(), strings.Trim(form, "[]")) {
			t.Errorf("printed: %s", all.String())
		}
	}
	if !strings.Contains(all.String(), hidden) {
		t.Error("[secret] is not printed")
	}
}

func TestValue_CloseWipes(t *testing.T) {
	t.Parallel()
	raw := append(make([]byte, 0, 100), mark...)
	v, err := newValue(raw)
	if err != nil {
		t.Fatal(err)
	}
	c := v
	v.Close()
	c.Close()
	if c.Bytes() != nil || !bytes.Equal(raw[:cap(raw)], make([]byte, cap(raw))) {
		t.Error("the bytes are not wiped")
	}
	var zero Value
	zero.Close()
	if zero.Bytes() != nil || zero.Lease() != "" || !zero.RenewAt().IsZero() ||
		zero.Revoke(t.Context()) != nil {
		t.Error("the zero value is not empty")
	}
	mustFail(t, zero.Renew(t.Context()), fault.Unsupported)
}

func TestCheckValue(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]fault.Kind{
		"x": "", mark: "", "a b": "", " x ": "", "\u00e9\xff": "", strings.Repeat("x", MaxValue): "",
		"": fault.Invalid, " ": fault.Invalid, "  \u00a0 ": fault.Invalid, mark + "\n": fault.Invalid,
		mark + "\r": fault.Invalid, mark + "\nx": fault.Invalid, mark + "\x00": fault.Invalid, mark + "\t": fault.Invalid,
		mark + "\x7f": fault.Invalid, strings.Repeat("x", MaxValue+1): fault.TooLarge,
	} {
		if err := CheckValue([]byte(in)); fault.KindOf(err) != want {
			t.Errorf("%.20q: %v, expected %q", in, err, want)
		} else {
			mustHide(t, err)
		}
	}
}
