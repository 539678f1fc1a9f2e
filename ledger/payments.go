package ledger

import (
	"context"
	"database/sql"
	"fmt"

	"refundgate/refund"
)

// lockPayment holds the row of r's payment until the transaction ends, so that
// the payment's refunds are weighed one after the other. The payment's amount
// is taken from r if r is the first to state it.
func lockPayment(ctx context.Context, tx *sql.Tx, r refund.Refund) error {
	var currency *string
	if r.PaymentAmount != nil {
		currency = &r.PaymentAmount.Currency
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO payments (account, payment_id, amount, currency) VALUES (?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE currency = COALESCE(payments.currency, VALUES(currency)), amount = COALESCE(payments.amount, VALUES(amount))`,
		r.Account, r.PaymentID, paymentAmount(r), currency)
	if err != nil {
		return fmt.Errorf("locking the payment: %w", err)
	}
	return nil
}

// reserve refuses r if, as far as the payment's amount is known, the payment's
// refunds would exceed it. The amount is known from the first accepted refund
// that stated it. The payment must be locked.
func reserve(ctx context.Context, tx *sql.Tx, r refund.Refund) error {
	limit, err := paymentLimit(ctx, tx, r)
	if err != nil || limit == nil {
		return err
	}
	if limit.Currency != r.Amount.Currency {
		return &PaymentMismatchError{PaymentID: r.PaymentID, Known: *limit, Stated: r.Amount}
	}
	reserved, err := queryAll(ctx, tx, scanMoney, `
		SELECT SUM(amount), currency FROM refunds
		WHERE account = ? AND payment_id = ? AND status NOT IN (?, ?)
		GROUP BY currency`, r.Account, r.PaymentID, refund.StatusRejected, refund.StatusNotRefunded)
	if err != nil {
		return fmt.Errorf("summing up the payment's refunds: %w", err)
	}
	sum := refund.Money{Currency: limit.Currency}
	for _, m := range reserved {
		// Accepted while the payment was unknown; it can't be added up.
		if m.Currency != limit.Currency {
			return &PaymentMismatchError{PaymentID: r.PaymentID, Known: *limit, Stated: m}
		}
		sum = m
	}
	if sum.Value+r.Amount.Value > limit.Value {
		return &PaymentExceededError{PaymentID: r.PaymentID, Limit: *limit, Reserved: sum}
	}
	return nil
}

// paymentLimit returns the payment's amount, or nil if nobody has stated it. The
// payment must be locked.
func paymentLimit(ctx context.Context, tx *sql.Tx, r refund.Refund) (*refund.Money, error) {
	var value *int64
	var currency *string
	err := tx.QueryRowContext(ctx, `
		SELECT amount, currency FROM payments WHERE account = ? AND payment_id = ?`,
		r.Account, r.PaymentID).Scan(&value, &currency)
	if err != nil {
		return nil, fmt.Errorf("reading the payment: %w", err)
	}
	if value == nil || currency == nil {
		return nil, nil
	}
	known := refund.Money{Value: *value, Currency: *currency}
	if r.PaymentAmount != nil && *r.PaymentAmount != known {
		return nil, &PaymentMismatchError{PaymentID: r.PaymentID, Known: known, Stated: *r.PaymentAmount}
	}
	return &known, nil
}

// paymentAmount is the stated amount of r's payment as a parameter.
func paymentAmount(r refund.Refund) *int64 {
	if r.PaymentAmount == nil {
		return nil
	}
	return &r.PaymentAmount.Value
}

func scanMoney(row scanner) (m refund.Money, err error) {
	err = row.Scan(&m.Value, &m.Currency)
	return m, err
}
