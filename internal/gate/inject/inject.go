// Package inject puts the values of secrets into HTTP requests: into heads, at the sites where package grant has found
// their placeholders, and into bodies, at sites where their placeholders are. It is pure. It fails rather than guess: a
// request that is not what was decided about, or that a value would make invalid, must not leave. Its errors do not
// contain the value.
//
// Package wallet imports it; it imports grant.
package inject

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/coppice-dev/coppice/internal/grant"
)

// addedUser is the user of Basic authentication if the request has none: services that take a token as the password
// ignore it, but not all accept an empty one.
const addedUser = "coppice"

// ErrMoved means that a request is not the one that was decided about.
var ErrMoved = errors.New("its placeholder is not in the request that was decided about")

// Into puts value into the head of r, as p says. If it fails, r must not be sent.
func Into(r *http.Request, p grant.Put, value []byte) error {
	if len(value) == 0 || bytes.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return errors.New("its value is empty, or has control characters")
	}
	return into(r, p, string(value)) // net/http checks all headers again
}

func into(r *http.Request, p grant.Put, value string) error {
	if p.Mode != grant.ModeAdd && p.Placeholder == "" {
		return ErrMoved
	}
	switch p.Site.In {
	case grant.InHeader, grant.InBearer:
		return header(r.Header, p, value)
	case grant.InBasic, grant.InGit:
		return basic(r.Header, p, value)
	case grant.InQuery:
		return query(r.URL, p, value)
	case grant.InPath:
		return path(r.URL, p, value)
	case grant.InCookie:
		return cookie(r.Header, p, value)
	}
	return fmt.Errorf("site %s is not supported", p.Site)
}

// header puts value into a header, after the word that the site has before it.
func header(h http.Header, p grant.Put, value string) error {
	if p.Mode == grant.ModeAdd {
		if p.Site.Part != "" {
			value = p.Site.Part + " " + value
		}
		h.Set(p.Site.Name, value)
		return nil
	}
	v, word := h[p.Site.Name], ""
	if len(v) != 1 {
		return ErrMoved
	}
	text := v[0]
	if p.Site.Part != "" {
		word, text, _ = strings.Cut(text, " ")
		word += " "
	}
	if text != p.Placeholder {
		return ErrMoved
	}
	h[p.Site.Name] = []string{word + value}
	return nil
}

// basic puts value into the user or the password of Basic authentication.
func basic(h http.Header, p grant.Put, value string) error {
	scheme, user, password := "Basic", addedUser, ""
	v := h["Authorization"]
	if len(v) > 1 {
		return ErrMoved
	}
	if len(v) == 1 {
		word, coded, _ := strings.Cut(v[0], " ")
		b, err := base64.StdEncoding.DecodeString(coded)
		if basicScheme := strings.EqualFold(word, "Basic") && err == nil; basicScheme {
			scheme = word
			user, password, _ = strings.Cut(string(b), ":")
		} else if p.Mode != grant.ModeAdd {
			return ErrMoved
		}
	}
	place := &password
	if p.Site.Part == "user" {
		place = &user
		if strings.Contains(value, ":") {
			return errors.New("a user name cannot have a colon, as its value does")
		}
	}
	if p.Mode != grant.ModeAdd && *place != p.Placeholder {
		return ErrMoved
	}
	*place = value
	h["Authorization"] = []string{scheme + " " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))}
	return nil
}

// query puts value into the query.
func query(u *url.URL, p grant.Put, value string) error {
	var pairs []string
	found := 0
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		k, v, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(k)
		if err != nil {
			key = k
		}
		if text, err := url.QueryUnescape(v); err == nil && key == p.Site.Name && text == p.Placeholder {
			found++
			pair = k + "=" + url.QueryEscape(value)
		}
		if pair != "" && (p.Mode != grant.ModeAdd || key != p.Site.Name) {
			pairs = append(pairs, pair)
		}
	}
	switch {
	case p.Mode == grant.ModeAdd:
		pairs = append(pairs, url.QueryEscape(p.Site.Name)+"="+url.QueryEscape(value))
	case found != 1:
		return ErrMoved
	}
	u.RawQuery = strings.Join(pairs, "&")
	return nil
}

// path puts value into the path.
func path(u *url.URL, p grant.Put, value string) error {
	parts, found := strings.Split(u.EscapedPath(), "/"), 0
	for i, part := range parts {
		if part == p.Placeholder {
			found++
			parts[i] = url.PathEscape(value)
		}
	}
	if found != 1 {
		return ErrMoved
	}
	raw := strings.Join(parts, "/")
	whole, err := url.PathUnescape(raw)
	if err != nil {
		return ErrMoved
	}
	u.Path, u.RawPath = whole, raw
	return nil
}

// cookie puts value into a cookie.
func cookie(h http.Header, p grant.Put, value string) error {
	if strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`",;\`, c) }) {
		return errors.New("a cookie cannot have its value")
	}
	var pairs []string
	found := 0
	for _, line := range h["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			pair = strings.TrimSpace(pair)
			name, text, _ := strings.Cut(pair, "=")
			if name == p.Site.Name && text == p.Placeholder {
				found++
				pair = name + "=" + value
			}
			if pair != "" && (p.Mode != grant.ModeAdd || name != p.Site.Name) {
				pairs = append(pairs, pair)
			}
		}
	}
	switch {
	case p.Mode == grant.ModeAdd:
		pairs = append(pairs, p.Site.Name+"="+value)
	case found != 1:
		return ErrMoved
	}
	h["Cookie"] = []string{strings.Join(pairs, "; ")}
	return nil
}
