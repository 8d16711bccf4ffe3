{% materialization incremental, adapter='spark_lance', supported_languages=['sql', 'python'] -%}
  {%- set language = model['language'] -%}
  {%- set grant_config = config.get('grants') -%}
  {%- set unique_key = config.get('unique_key') -%}
  {%- set strategy = config.get('incremental_strategy') or ('merge' if unique_key else 'append') -%}
  {%- set on_schema_change = incremental_validate_on_schema_change(config.get('on_schema_change'), default='ignore') -%}
  {%- set predicates = config.get('predicates') or config.get('incremental_predicates') -%}
  {%- set existing_relation = load_cached_relation(this) -%}
  {%- set target_relation = this.incorporate(type='table') -%}
  {%- set strategy_macro = adapter.get_incremental_strategy_macro(context, strategy) -%}

  {{ run_hooks(pre_hooks) }}

  {%- if existing_relation is none or existing_relation.is_view or should_full_refresh() -%}
    {%- if existing_relation is not none and existing_relation.is_view -%}
      {% do adapter.drop_relation(existing_relation) %}
    {%- endif -%}
    {%- call statement('main', language=language) -%}
      {{ create_table_as(False, target_relation, compiled_code, language) }}
    {%- endcall -%}
    {% do persist_constraints(target_relation, model) %}
  {%- else -%}
    {%- set temp_relation = make_temp_relation(target_relation) -%}
    {%- call statement('create_temp_relation', language=language) -%}
      {{ create_table_as(True, temp_relation, compiled_code, language) }}
    {%- endcall -%}
    {%- set changed_columns = process_schema_changes(on_schema_change, temp_relation, existing_relation) -%}
    {%- set arguments = {
      'target_relation': target_relation,
      'temp_relation': temp_relation,
      'unique_key': unique_key,
      'dest_columns': changed_columns or adapter.get_columns_in_relation(existing_relation),
      'incremental_predicates': predicates,
    } -%}
    {%- call statement('main') -%}
      {{ strategy_macro(arguments) }}
    {%- endcall -%}
    {% do adapter.drop_relation(temp_relation) %}
  {%- endif -%}

  {% do apply_grants(target_relation, grant_config, should_revoke(existing_relation, full_refresh_mode=should_full_refresh())) %}
  {% do persist_docs(target_relation, model) %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [target_relation]}) }}
{%- endmaterialization %}


{# Each strategy is one statement, so one version of the table. #}

{% macro lance_column_names(columns, prefix='') %}
  {%- set names = [] -%}
  {%- for column in columns -%}{%- do names.append(prefix ~ column.quoted) -%}{%- endfor -%}
  {{ return(names | join(', ')) }}
{% endmacro %}


{% macro spark_lance__get_incremental_default_sql(arg_dict) %}
  {{ return(spark_lance__get_incremental_append_sql(arg_dict)) }}
{% endmacro %}


{% macro spark_lance__get_incremental_append_sql(arg_dict) %}
  {%- set names = lance_column_names(arg_dict['dest_columns']) -%}
  insert into {{ arg_dict['target_relation'] }} ({{ names }})
  select {{ names }} from {{ arg_dict['temp_relation'] }}
{% endmacro %}


{% macro spark_lance__get_incremental_merge_sql(arg_dict) %}
  {%- set columns = arg_dict['dest_columns'] -%}
  {%- set keys = lance_keys(arg_dict['unique_key']) -%}
  {%- set updated = get_merge_update_columns(
    config.get('merge_update_columns'), config.get('merge_exclude_columns'), columns
  ) -%}
  {%- if not keys -%}
    {{ return(spark_lance__get_incremental_append_sql(arg_dict)) }}
  {%- endif -%}
  merge into {{ arg_dict['target_relation'] }} as DBT_INTERNAL_DEST
  using {{ arg_dict['temp_relation'] }} as DBT_INTERNAL_SOURCE
  on {{ lance_conditions(keys, '=', arg_dict['incremental_predicates']) }}
  when matched then update set
    {% for name in updated %}{{ name }} = DBT_INTERNAL_SOURCE.{{ name }}{{ ', ' if not loop.last }}{% endfor %}
  when not matched then insert ({{ lance_column_names(columns) }})
    values ({{ lance_column_names(columns, 'DBT_INTERNAL_SOURCE.') }})
{% endmacro %}


{% macro spark_lance__get_incremental_delete_insert_sql(arg_dict) %}
  {%- set keys = lance_keys(arg_dict['unique_key']) -%}
  {%- if not keys -%}
    {{ return(spark_lance__get_incremental_append_sql(arg_dict)) }}
  {%- endif -%}
  {{ lance_replace_by_keys(arg_dict, keys, '=') }}
{% endmacro %}


{% macro spark_lance__get_incremental_insert_overwrite_sql(arg_dict) %}
  {%- set partitions = lance_partition_columns() -%}
  {%- set names = lance_column_names(arg_dict['dest_columns']) -%}
  {%- if partitions -%}
    {{ lance_replace_by_keys(arg_dict, partitions, '<=>') }}
  {%- else -%}
    insert overwrite {{ arg_dict['target_relation'] }} ({{ names }})
    select {{ names }} from {{ arg_dict['temp_relation'] }}
  {%- endif -%}
{% endmacro %}


{% macro spark_lance__get_incremental_microbatch_sql(arg_dict) %}
  {%- set column = config.get('event_time') -%}
  {%- set start = model.batch.event_time_start if model.batch else none -%}
  {%- set end = model.batch.event_time_end if model.batch else none -%}
  {%- if not (column and start and end) -%}
    {% do exceptions.raise_compiler_error(
      "microbatch needs the column of the event time and a batch: add event_time='column' to the config of " ~ model.name
    ) %}
  {%- endif -%}
  {%- set names = lance_column_names(arg_dict['dest_columns']) -%}
  insert into {{ arg_dict['target_relation'] }}
  replace where {{ column }} >= {{ lance_event_time(start) }} and {{ column }} < {{ lance_event_time(end) }}
  select {{ names }} from {{ arg_dict['temp_relation'] }}
{% endmacro %}


{% macro lance_event_time(time) %}
  {{ return("timestamp '" ~ time.isoformat(' ') ~ "'") }}
{% endmacro %}


{% macro lance_keys(unique_key) %}
  {%- if not unique_key -%}{{ return([]) }}{%- endif -%}
  {%- if unique_key is string -%}{{ return([unique_key]) }}{%- endif -%}
  {{ return(unique_key | list) }}
{% endmacro %}


{% macro lance_conditions(keys, operator, predicates) %}
  {%- set conditions = [] -%}
  {%- for key in keys -%}
    {%- do conditions.append('DBT_INTERNAL_DEST.' ~ key ~ ' ' ~ operator ~ ' DBT_INTERNAL_SOURCE.' ~ key) -%}
  {%- endfor -%}
  {%- if predicates is string -%}{%- set predicates = [predicates] -%}{%- endif -%}
  {%- for predicate in predicates or [] -%}{%- do conditions.append('(' ~ predicate ~ ')') -%}{%- endfor -%}
  {{ return(conditions | join(' and ')) }}
{% endmacro %}


{# Delete the rows of the table whose keys the new rows have, and insert the new rows, in one commit.
   The source has the new rows, which match nothing, and each key once, which matches the rows to delete. #}
{% macro lance_replace_by_keys(arg_dict, keys, operator) %}
  {%- set columns = arg_dict['dest_columns'] -%}
  {%- set source = arg_dict['temp_relation'] -%}
  {%- set names = [] -%}
  {%- for key in keys -%}{%- do names.append(key | replace('`', '') | lower) -%}{%- endfor -%}
  merge into {{ arg_dict['target_relation'] }} as DBT_INTERNAL_DEST
  using (
    select {{ lance_column_names(columns) }}, false as dbt_deletes from {{ source }}
    union all
    select
    {%- for column in columns %}
      {{ column.quoted if column.name | lower in names else 'cast(null as ' ~ column.data_type ~ ')' }},
    {%- endfor %}
      true
    from (select distinct {{ keys | join(', ') }} from {{ source }})
  ) as DBT_INTERNAL_SOURCE
  on DBT_INTERNAL_SOURCE.dbt_deletes and {{ lance_conditions(keys, operator, arg_dict['incremental_predicates']) }}
  when matched then delete
  when not matched and not DBT_INTERNAL_SOURCE.dbt_deletes then insert ({{ lance_column_names(columns) }})
    values ({{ lance_column_names(columns, 'DBT_INTERNAL_SOURCE.') }})
{% endmacro %}
