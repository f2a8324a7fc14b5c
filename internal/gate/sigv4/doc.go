// Package sigv4 signs HTTP requests that are signed for AWS (Signature Version 4) once more, with another access key.
// It reads the signature that a client made: its region, service and time, and which headers are signed. The other
// signature is for the same. Signatures of the chunks in a body (aws-chunked) are made again while it is read.
//
//	X-Amz-Content-Sha256                          the body
//	64 hexadecimal digits, UNSIGNED-PAYLOAD       is not read
//	STREAMING-UNSIGNED-PAYLOAD-TRAILER            is not read
//	STREAMING-AWS4-HMAC-SHA256-PAYLOAD[-TRAILER]  chunks, each of which is signed again
//	none                                          the caller hashes it; in a query for S3, it is not signed
//
// Canonical requests are as in
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html and
// https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html. The package is pure, except that a body of
// chunks reads another. All that a request contains is hostile. Errors contain nothing of the access key.
//
// Package wallet imports it; it imports nothing.
package sigv4
