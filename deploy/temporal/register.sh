#!/bin/sh
# Registers refundgate's namespace (TEMPORAL_NAMESPACE) and its search
# attributes at TEMPORAL_ADDRESS. Running it again changes nothing.
set -eu

# The namespace commands don't heed TEMPORAL_NAMESPACE.
temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
	temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention 720h

# A server may need a moment until it knows a new namespace everywhere.
tries=0
until temporal operator search-attribute list >/dev/null 2>&1; do
	tries=$((tries + 1))
	[ "$tries" -lt 30 ] || { echo "the namespace does not appear" >&2; exit 1; }
	sleep 1
done

# Adds one search attribute; one that exists with the same type is fine.
add() {
	temporal operator search-attribute create --name "$1" --type "$2"
}
add RefundStatus Keyword
add RefundAccount Keyword
add RefundReviewReason Keyword
add RefundOwner Keyword
add RefundOrderId Keyword
add RefundAttempts Int
add RefundDeadline Datetime
