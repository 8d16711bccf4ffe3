{% materialization snapshot, adapter='spark_lance' %}
  {%- set strategy_name = config.get('strategy') -%}
  {%- set grant_config = config.get('grants') -%}
  {%- set columns = config.get('snapshot_table_column_names') or get_snapshot_table_column_names() -%}
  {%- set exists, target_relation = get_or_create_relation(
    database=this.database, schema=this.schema, identifier=this.identifier, type='table') -%}
  {%- if not target_relation.is_table -%}
    {% do exceptions.relation_wrong_type(target_relation, 'table') %}
  {%- endif -%}
  {%- set staging_relation = make_temp_relation(target_relation) -%}

  {{ run_hooks(pre_hooks) }}

  {%- set strategy = strategy_dispatch(strategy_name)(model, "snapshotted_data", "source_data", model['config'], exists) -%}
  {% if not exists %}
    {% call statement('main') %}
      {{ create_table_as(False, target_relation, build_snapshot_table(strategy, model['compiled_code'])) }}
    {% endcall %}
  {% else %}
    {{ adapter.valid_snapshot_target(target_relation, columns) }}
    {% call statement('build_snapshot_staging_relation') %}
      {{ create_table_as(True, staging_relation, snapshot_staging_table(strategy, sql, target_relation)) }}
    {% endcall %}

    {%- set internal = ['dbt_change_type', 'dbt_unique_key'] -%}
    {%- if strategy.unique_key | is_list -%}
      {%- for key in strategy.unique_key -%}{%- do internal.append('dbt_unique_key_' ~ loop.index) -%}{%- endfor -%}
    {%- endif -%}
    {%- set missing = [] -%}
    {%- for column in adapter.get_missing_columns(staging_relation, target_relation) if column.name | lower not in internal -%}
      {%- do missing.append(column) -%}
    {%- endfor -%}
    {%- if missing -%}
      {% do alter_relation_add_remove_columns(target_relation, missing, none) %}
    {%- endif -%}
    {%- set source_columns = [] -%}
    {%- for column in adapter.get_columns_in_relation(staging_relation) if column.name | lower not in internal -%}
      {%- do source_columns.append(column) -%}
    {%- endfor -%}
    {% call statement('main') %}
      {{ lance_snapshot_merge(target_relation, staging_relation, source_columns, columns) }}
    {% endcall %}
    {% do adapter.drop_relation(staging_relation) %}
  {% endif %}

  {% do apply_grants(target_relation, grant_config, should_revoke(exists, full_refresh_mode=False)) %}
  {% do persist_docs(target_relation, model) %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}


{% macro lance_snapshot_merge(target, source, source_columns, columns) %}
  {%- set current = config.get('dbt_valid_to_current') -%}
  merge into {{ target }} as DBT_INTERNAL_DEST
  using {{ source }} as DBT_INTERNAL_SOURCE
  on DBT_INTERNAL_SOURCE.{{ columns.dbt_scd_id }} = DBT_INTERNAL_DEST.{{ columns.dbt_scd_id }}
  when matched
    and (DBT_INTERNAL_DEST.{{ columns.dbt_valid_to }} is null
      {%- if current %} or DBT_INTERNAL_DEST.{{ columns.dbt_valid_to }} = {{ current }}{% endif %})
    and DBT_INTERNAL_SOURCE.dbt_change_type in ('update', 'delete')
    then update set {{ columns.dbt_valid_to }} = DBT_INTERNAL_SOURCE.{{ columns.dbt_valid_to }}
  when not matched and DBT_INTERNAL_SOURCE.dbt_change_type = 'insert'
    then insert ({{ lance_column_names(source_columns) }})
    values ({{ lance_column_names(source_columns, 'DBT_INTERNAL_SOURCE.') }})
{% endmacro %}
