package grant

import (
	"slices"
	"strings"
)

// signs reports whether f is where a request that is signed for AWS (Signature Version 4) names the access key needle,
// or has its session token, and the signature is for a service and region of s. AWS verifies that the scope is that of
// the service.
func (s Site) signs(f field, needle string) bool {
	scope := ""
	switch {
	case (f.in == InHeader || f.in == InQuery) && f.name == "X-Amz-Security-Token":
		return f.text == needle
	case f.in == InQuery && f.name == "X-Amz-Credential":
		scope = f.text
	case f.in == InHeader && f.name == "Authorization":
		rest, ok := strings.CutPrefix(f.text, "AWS4-HMAC-SHA256 ")
		if !ok { // such as AWS4-ECDSA-P256-SHA256, which the gate cannot sign
			return false
		}
		for part := range strings.SplitSeq(rest, ",") {
			if c, ok := strings.CutPrefix(strings.TrimSpace(part), "Credential="); ok {
				if scope != "" {
					return false
				}
				scope = c
			}
		}
	}
	parts := strings.Split(scope, "/") // ID/DATE/REGION/SERVICE/aws4_request
	return len(parts) == 5 && parts[0] == needle && parts[4] == "aws4_request" && s.covers(parts[2], parts[3])
}

// covers reports whether s allows a signature for a region and a service.
func (s Site) covers(region, service string) bool {
	if s.Regions != nil && !slices.Contains(s.Regions, region) {
		return false
	}
	if s.Services != nil {
		return slices.Contains(s.Services, service)
	}
	return service != "" && !slices.ContainsFunc(s.Refused, func(r string) bool { return strings.EqualFold(r, service) })
}

// needles returns what of a placeholder may stand in a head. Of a placeholder for AWS these are its parts; the second,
// the secret key, only signs.
func (k Kind) needles(placeholder string) []string {
	if k == AWS {
		return strings.Split(placeholder, ":")
	}
	return []string{placeholder}
}
