//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"encoding/asn1"
)

// A key store of Java in the format of RFC 7292, as JDKs bring their own since version
// 18: without a password, so that nothing of it is encrypted or summed up.
//
//	PFX          version 3, ContentInfo of an AuthenticatedSafe, no MAC
//	  ContentInfo*   "data", an octet string: SafeContents
//	    SafeBag*       "certBag": X.509, DER; attributes: its alias, and that Java trusts it
type (
	pfx struct {
		Version int
		Safe    contentInfo
		MAC     asn1.RawValue `asn1:"optional"`
	}
	contentInfo struct {
		Type    asn1.ObjectIdentifier
		Content []byte `asn1:"tag:0,explicit"` // of "data" alone
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

// withPKCS12 adds an authority to a Java key store. It returns nil if have is not of this
// format, has a password, or holds anything but certificates: every user can read the copy.
func withPKCS12(have, der []byte) []byte {
	var p pfx
	if rest, err := asn1.Unmarshal(have, &p); err != nil || len(rest) > 0 || p.Version != 3 || len(p.MAC.FullBytes) > 0 || !p.Safe.Type.Equal(oidData) {
		return nil
	}
	var parts []asn1.RawValue
	if rest, err := asn1.Unmarshal(p.Safe.Content, &parts); err != nil || len(rest) > 0 || !onlyCertificates(parts) {
		return nil
	}
	if bytes.Contains(p.Safe.Content, der) {
		return have
	}
	part, err := trustedPart(der)
	if err != nil {
		return nil
	}
	if p.Safe.Content, err = asn1.Marshal(append(parts, asn1.RawValue{FullBytes: part})); err != nil {
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

// onlyCertificates reports whether the parts of a store hold nothing but certificates.
func onlyCertificates(parts []asn1.RawValue) bool {
	for _, part := range parts {
		var info contentInfo
		var bags []struct {
			Type  asn1.ObjectIdentifier
			Value asn1.RawValue
		}
		if rest, err := asn1.Unmarshal(part.FullBytes, &info); err != nil || len(rest) > 0 || !info.Type.Equal(oidData) {
			return false
		}
		if rest, err := asn1.Unmarshal(info.Content, &bags); err != nil || len(rest) > 0 {
			return false
		}
		for _, bag := range bags {
			if !bag.Type.Equal(oidCertBag) {
				return false
			}
		}
	}
	return true
}

// trustedPart is what holds one certificate that Java trusts.
func trustedPart(der []byte) ([]byte, error) {
	var alias []byte
	for _, c := range []byte(jksAlias) {
		alias = append(alias, 0, c)
	}
	usage, err := asn1.Marshal(oidAnyUsage)
	if err != nil {
		return nil, err
	}
	bags, err := asn1.Marshal([]safeBag{{oidCertBag, certBag{oidX509, der}, []attribute{
		{oidFriendlyName, []asn1.RawValue{{Tag: asn1.TagBMPString, Bytes: alias}}},
		{oidJavaTrusts, []asn1.RawValue{{FullBytes: usage}}},
	}}})
	if err != nil {
		return nil, err
	}
	return asn1.Marshal(contentInfo{oidData, bags})
}
