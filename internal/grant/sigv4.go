package grant

import (
	"slices"
	"strings"
)

// signature is how a request that is signed for AWS (Signature Version 4) names an access key.
const signature = "AWS4-HMAC-SHA256"

// signs reports whether f is where a signed request names the access key needle, or has its session token. why says
// why the request must not be signed all the same: s is not for its service and region, or its host is not one of the
// service.
func (s Site) signs(u Use, f field, needle string) (is bool, why string) {
	scope := ""
	switch {
	case (f.in == InHeader || f.in == InQuery) && f.name == "X-Amz-Security-Token":
		return f.text == needle, ""
	case f.in == InQuery && f.name == "X-Amz-Credential":
		scope = f.text
	case f.in == InHeader && f.name == "Authorization" && strings.HasPrefix(f.text, "AWS4-ECDSA-"):
		return false, "the gate cannot make signatures of version 4A, which are for several regions"
	case f.in == InHeader && f.name == "Authorization":
		rest, ok := strings.CutPrefix(f.text, signature+" ")
		if !ok {
			return false, ""
		}
		for part := range strings.SplitSeq(rest, ",") {
			if c, ok := strings.CutPrefix(strings.TrimSpace(part), "Credential="); ok {
				if scope != "" {
					return false, ""
				}
				scope = c
			}
		}
	}
	parts := strings.Split(scope, "/") // ID/DATE/REGION/SERVICE/aws4_request
	if len(parts) != 5 || parts[0] != needle || parts[4] != "aws4_request" {
		return false, ""
	}
	region, service := parts[2], parts[3]
	if !s.covers(region, service) {
		why = "it does not allow service " + shown(service) + " in region " + shown(region)
		if s.refuses(service) {
			why += ", unless a site names the service, since it creates or returns credentials"
		}
		return false, why
	}
	why = s.elsewhere(u.Host.String(), region, service)
	return why == "", why
}

// covers reports whether s allows a signature for a region and a service.
func (s Site) covers(region, service string) bool {
	if s.Regions != nil && !slices.Contains(s.Regions, region) {
		return false
	}
	if s.Services != nil {
		return slices.Contains(s.Services, service)
	}
	return service != "" && !s.refuses(service)
}

// refuses reports whether a service is one that creates or returns credentials, and s does not name it.
func (s Site) refuses(service string) bool {
	return !slices.Contains(s.Services, service) &&
		slices.ContainsFunc(s.Refused, func(r string) bool { return strings.EqualFold(r, service) })
}

// elsewhere returns why a request to host must not be signed for a service and region, or "". AWS verifies that a
// signature is for the service that gets it. So that a service that does not cannot be reached by the name of another,
// the names of hosts are checked too. Hosts of others are those that the grant names.
func (s Site) elsewhere(host, region, service string) string {
	name, ours := "", false
	for _, domain := range []string{".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws", ".on.aws",
		".api.amazonwebservices.com.cn", ".on.amazonwebservices.com.cn"} {
		if at, ok := strings.CutSuffix(host, domain); ok {
			name, ours = at, true
		}
	}
	if !ours {
		return ""
	}
	label := ""
	for label == "" && name != "" { // the service is the last name that is not a region
		at := strings.LastIndexByte(name, '.')
		label, name = name[at+1:], name[:max(at, 0)]
		switch {
		case regional(label) && label != region:
			return "host " + host + " is in region " + label + ", and the signature is for region " + shown(region)
		case regional(label) || slices.Contains([]string{"dualstack", "global", "us-gov", "vpce"}, label):
			label = ""
		}
	}
	label = strings.TrimPrefix(strings.TrimSuffix(label, "-fips"), "fips-")
	if label == "s3" && strings.Contains("."+name, ".control.vpce-") {
		label = s3Control
	}
	switch {
	case label == service || slices.Contains(endpoints(service), label):
		return ""
	case related(label, service) && !s.refusesPart(label, service):
		return ""
	}
	return "host " + host + " is not one of service " + shown(service)
}

// s3Control is the name in hosts of the control of S3, whose signatures are for s3. Its operation GetDataAccess returns
// an access key, and that of S3 do not, so that Site.Refused has this name besides those of services.
const s3Control = "s3-control"

// related reports whether a name in a host is that of a service, or one of its names.
func related(label, service string) bool {
	return label == service || strings.HasPrefix(label, service+"-") || strings.HasSuffix(label, "-"+service)
}

// refusesPart reports whether a name in a host is one of a refused service, which has a longer name than service.
func (s Site) refusesPart(label, service string) bool {
	return slices.ContainsFunc(s.Refused, func(r string) bool {
		return len(r) > len(service) && related(label, r) && s.refuses(r)
	})
}

// regional reports whether label is the name of a region, such as us-gov-east-1.
func regional(label string) bool {
	at := strings.LastIndexByte(label, '-')
	words := strings.Split(label[:max(at, 0)], "-")
	return len(words) >= 2 && strings.Trim(label[:at], lower+"-") == "" && !slices.Contains(words, "") &&
		len(words[0]) <= 4 && len(label) == at+2 && strings.Trim(label[at+1:], digits) == ""
}

// endpoints returns the names in hosts of a service whose signatures have another name. Names that only begin or end
// with that of the service are not among them. The source is the data of botocore 1.43.11 (endpoint-rule-set-1.json).
func endpoints(service string) []string {
	switch service {
	case "appconfig":
		return []string{"appconfigdata"}
	case "appstream":
		return []string{"appstream2"}
	case "aws-marketplace":
		return []string{"agreement-marketplace", "catalog-marketplace", "deployment-marketplace", "discovery-marketplace",
			"entitlement-marketplace", "marketplace", "metering-marketplace", "reporting-marketplace"}
	case "cloudfront-keyvaluestore":
		return []string{"cloudfront-kvs"}
	case "cloudhsm":
		return []string{"cloudhsmv2"}
	case "cloudsearch":
		return []string{"cloudsearchdomain"}
	case "dynamodb":
		return []string{"ddb"}
	case "elasticfilesystem":
		return []string{"efs"}
	case "es":
		return []string{"aos"}
	case "forecast":
		return []string{"forecastquery"}
	case "geo-maps", "geo-places", "geo-routes":
		return []string{"geo"}
	case "greengrass", "iot-jobs-data", "iotdata":
		return []string{"iot"}
	case "IoTSecuredTunneling":
		return []string{"iot", "iot-tunneling"}
	case "ioteventsdata":
		return []string{"iotevents"}
	case "ivs":
		return []string{"ivsrealtime"}
	case "memorydb":
		return []string{"memory-db"}
	case "mgh":
		return []string{"migrationhub-config"}
	case "mobiletargeting", "sms-voice":
		return []string{"pinpoint"}
	case "route53-recovery-control-config":
		return []string{"arc-recovery-control-config"}
	case "ses":
		return []string{"email", "mail-manager"}
	case "sqs":
		return []string{"queue"}
	case "sso-oauth":
		return []string{"oidc"}
	case "awsssoportal":
		return []string{"sso"}
	}
	return nil
}

// Parts returns what of a value or placeholder is secret by itself: of an access key of AWS its ID, the secret key and
// the session token, else all of it. Of a placeholder, these are what may stand in a head, except the secret key, which
// only signs.
func (k Kind) Parts(text string) []string {
	if k == AWS {
		return strings.SplitN(text, ":", 3)
	}
	return []string{text}
}

// Variables returns the variables of a grant, as NAME=PLACEHOLDER. Of the parts of an access key of AWS, each variable
// has the one that its name ends in, and there is none for a part that the placeholder does not have.
func (k Kind) Variables(names []string, placeholder string) (all []string) {
	parts := k.Parts(placeholder)
	for _, name := range names {
		value := placeholder
		for i, end := range []string{"ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"} {
			if k != AWS || !strings.HasSuffix(name, end) {
				continue
			}
			if value = ""; i < len(parts) {
				value = parts[i]
			}
		}
		if value != "" {
			all = append(all, name+"="+value)
		}
	}
	return all
}
