package javastore

import (
	"bytes"
	"encoding/asn1"
	"slices"
)

// A key store in the format of RFC 7292, as shipped with JDKs since version 18: without a password, so that
// nothing in it is encrypted or authenticated.
//
//	PFX          version 3, ContentInfo of an AuthenticatedSafe, no MAC
//	  ContentInfo*   "data", an octet string: SafeContents
//	    SafeBag*       "certBag": X.509, DER; attributes: its alias, and that Java trusts it
//
// Sequences are parsed one element at a time: as a slice, those of a hostile store would take forty times its
// size.
type (
	pfx struct {
		Version int
		Safe    contentInfo
		MAC     asn1.RawValue `asn1:"optional"`
	}
	contentInfo struct {
		Type    asn1.ObjectIdentifier
		Content []byte `asn1:"tag:0,explicit"` // of "data" only
	}
	safeBag struct {
		Type       asn1.ObjectIdentifier
		Value      certBag     `asn1:"tag:0,explicit"`
		Attributes []attribute `asn1:"set"`
	}
	certBag struct {
		Type asn1.ObjectIdentifier
		DER  []byte `asn1:"tag:0,explicit"`
	}
	attribute struct {
		Type   asn1.ObjectIdentifier
		Values []asn1.RawValue `asn1:"set"`
	}
)

var (
	oidData         = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}
	oidCertBag      = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 12, 10, 1, 3}
	oidX509         = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 22, 1}
	oidFriendlyName = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 20}
	oidJavaTrusts   = asn1.ObjectIdentifier{2, 16, 840, 1, 113894, 746875, 1, 1}
	oidAnyUsage     = asn1.ObjectIdentifier{2, 5, 29, 37, 0}
)

// addPKCS12 is Add for this format. It returns nil for any other.
func addPKCS12(have, der []byte) []byte {
	var p pfx
	if !unmarshal(have, &p) || p.Version != 3 || len(p.MAC.FullBytes) > 0 || !p.Safe.Type.Equal(oidData) {
		return nil
	}
	parts, ok := elements(p.Safe.Content, onlyCertificates)
	if !ok {
		return nil
	}
	if bytes.Contains(p.Safe.Content, der) {
		return have
	}
	part, err := trustedPart(der)
	if err != nil {
		return nil
	}
	safe := asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: slices.Concat(parts, part)}
	if p.Safe.Content, err = asn1.Marshal(safe); err != nil {
		return nil
	}
	all, err := asn1.Marshal(struct {
		Version int
		Safe    contentInfo
	}{p.Version, p.Safe})
	if err != nil {
		return nil
	}
	return all
}

// onlyCertificates reports whether a part of a store contains only certificates.
func onlyCertificates(part []byte) bool {
	var info contentInfo
	if !unmarshal(part, &info) || !info.Type.Equal(oidData) {
		return false
	}
	_, ok := elements(info.Content, func(b []byte) bool {
		var bag struct {
			Type  asn1.ObjectIdentifier
			Value asn1.RawValue
		}
		return unmarshal(b, &bag) && bag.Type.Equal(oidCertBag)
	})
	return ok
}

// elements returns the content of the sequence b. The result is false unless b is a sequence and ok is true for
// each of its elements.
func elements(b []byte, ok func([]byte) bool) ([]byte, bool) {
	var all asn1.RawValue
	if !unmarshal(b, &all) || all.Class != asn1.ClassUniversal || all.Tag != asn1.TagSequence || !all.IsCompound {
		return nil, false
	}
	for rest := all.Bytes; len(rest) > 0; {
		var one asn1.RawValue
		var err error
		if rest, err = asn1.Unmarshal(rest, &one); err != nil || !ok(one.FullBytes) {
			return nil, false
		}
	}
	return all.Bytes, true
}

// unmarshal parses b into v. It reports whether b is exactly one value of v's type.
func unmarshal(b []byte, v any) bool {
	rest, err := asn1.Unmarshal(b, v)
	return err == nil && len(rest) == 0
}

// trustedPart returns a part with one certificate that Java trusts.
func trustedPart(der []byte) ([]byte, error) {
	var name []byte
	for _, c := range []byte(alias) {
		name = append(name, 0, c)
	}
	usage, err := asn1.Marshal(oidAnyUsage)
	if err != nil {
		return nil, err
	}
	bags, err := asn1.Marshal([]safeBag{{oidCertBag, certBag{oidX509, der}, []attribute{
		{oidFriendlyName, []asn1.RawValue{{Tag: asn1.TagBMPString, Bytes: name}}},
		{oidJavaTrusts, []asn1.RawValue{{FullBytes: usage}}},
	}}})
	if err != nil {
		return nil, err
	}
	return asn1.Marshal(contentInfo{oidData, bags})
}
