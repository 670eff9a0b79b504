"""release 1.1.0: limits of tenants by the tokens that their requests generate"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

# A trigger, because requests end in a dozen statements of several processes. Requests without a charge do not call it.
CHARGE = """create function charge_tokens() returns trigger language plpgsql as $$
declare
    tokens integer := new.charged_tokens;
begin
    if tg_op = 'UPDATE' then
        tokens := coalesce(new.output_tokens, cardinality(new.generated_ids)) - tokens;
    end if;
    if tokens <> 0 then
        insert into token_charges (tenant, at, tokens) values (new.tenant,
            case when tg_op = 'UPDATE' and tokens > 0 then clock_timestamp() else new.arrived_at end, tokens);
    end if;
    return null;
end $$"""


def upgrade() -> None:
    """Adds the limit, the charges against it, and the trigger that writes them."""
    op.execute("alter table tenants add generated_tokens_per_minute bigint")
    op.execute("alter table requests add charged_tokens integer")
    op.execute("""
        create table token_charges (
            id bigserial primary key, tenant text not null, at timestamptz not null, tokens integer not null
        )
    """)
    op.execute("create index token_charges_of_tenant on token_charges (tenant, at)")
    op.execute(CHARGE)
    op.execute("""
        create trigger requests_charged after insert on requests for each row
            when (new.charged_tokens is not null) execute function charge_tokens()
    """)
    op.execute("""
        create trigger requests_settled after update of finished_at on requests for each row
            when (old.finished_at is null and new.finished_at is not null and new.charged_tokens is not null)
            execute function charge_tokens()
    """)


def downgrade() -> None:
    """Drops them again."""
    op.execute("drop trigger requests_charged on requests")
    op.execute("drop trigger requests_settled on requests")
    op.execute("drop function charge_tokens")
    op.execute("drop table token_charges")
    op.execute("alter table requests drop charged_tokens")
    op.execute("alter table tenants drop generated_tokens_per_minute")
